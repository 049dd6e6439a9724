// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>

namespace gpushm::client_detail {

/// Lets one call at a time run the part that may wait. Other calls wait for their turn, each within
/// its own timeout.
///
/// Thread-safety: shared objects: safe.
class call_turn {
 public:
  /// Ends the turn at its end.
  class scope {
   public:
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    ~scope() {
      if (turn_ != nullptr) {
        const std::lock_guard lock(turn_->mutex_);
        turn_->is_taken_ = false;
        turn_->ended_.notify_one();
      }
    }
    [[nodiscard]] explicit operator bool() const noexcept { return turn_ != nullptr; }

   private:
    friend call_turn;
    explicit scope(call_turn* turn) noexcept : turn_(turn) {}
    call_turn* turn_;
  };

  /// Returns an empty scope if it was not this call's turn before `until`, or `stop` was requested.
  [[nodiscard]] scope take(std::chrono::steady_clock::time_point until,
                           const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    if (!ended_.wait_until(lock, stop, until, [this] { return !is_taken_; })) {
      return scope(nullptr);
    }
    is_taken_ = true;
    return scope(this);
  }

 private:
  std::mutex mutex_;
  std::condition_variable_any ended_;
  bool is_taken_ = false;
};

/// A stop that is requested when one of two others is.
///
/// Thread-safety: distinct objects: safe; shared objects: safe to read.
class either_stop {
 public:
  either_stop(const std::stop_token& first, const std::stop_token& second)
      : on_first_(first, request{&source_}), on_second_(second, request{&source_}) {}
  either_stop(const either_stop&) = delete;
  either_stop& operator=(const either_stop&) = delete;
  ~either_stop() = default;
  [[nodiscard]] std::stop_token token() const { return source_.get_token(); }

 private:
  struct request {
    std::stop_source* of;
    void operator()() const noexcept { of->request_stop(); }
  };
  std::stop_source source_;
  std::stop_callback<request> on_first_;
  std::stop_callback<request> on_second_;
};

}  // namespace gpushm::client_detail
