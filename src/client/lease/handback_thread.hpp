// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

namespace gpushm::client_detail {

/// A client's thread that connects again when a broker and its keeper have died, also if the
/// program requests nothing: a process that only holds memory must hand it back (handback.hpp). It
/// is started when it is first needed.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class handback_thread {
 public:
  /// One attempt; returns false to be called again after a pause. Must not throw.
  using attempt = std::function<bool(const std::stop_token& stop)>;

  explicit handback_thread(attempt once) : attempt_(std::move(once)) {}
  handback_thread(const handback_thread&) = delete;
  handback_thread& operator=(const handback_thread&) = delete;
  ~handback_thread() { stop(); }

  /// Attempts until one succeeds, for at most 10 minutes: after that the next request connects.
  /// Does not block. Returns false if the thread cannot be started, which is logged.
  bool start() noexcept;
  /// Blocks until the current attempt has returned. `start` has no effect afterwards.
  void stop() noexcept;
  /// From `start` until attempts have succeeded or ended.
  [[nodiscard]] bool is_busy() const;

 private:
  void run();

  attempt attempt_;
  std::stop_source stop_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  bool is_wanted_ = false;
  bool is_busy_ = false;
  std::jthread thread_;
};

}  // namespace gpushm::client_detail
