// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "base/process/backoff.hpp"
#include "base/report/log.hpp"
#include "kubernetes/api_client/client.hpp"

namespace gpushm::api_client {

namespace {

using nlohmann::json;
using clock = std::chrono::steady_clock;

// A stream that ends sooner than this without data counts as a failure.
constexpr std::chrono::seconds min_watch{1};
// Logs from this number of successive failures on: a single failure that the next try resolves is
// not logged.
constexpr unsigned logged_failures = 2;

std::string version_of(const json& object) {
  const json::json_pointer where("/metadata/resourceVersion");
  return object.contains(where) && object.at(where).is_string()
             ? object.at(where).get<std::string>()
             : std::string();
}

}  // namespace

class collection_watch::impl {
 public:
  impl(const client& through, std::string path, std::string field_selector, handler handler)
      : through_(through),
        path_(std::move(path)),
        selector_(std::move(field_selector)),
        to_(std::move(handler)),
        thread_([this](const std::stop_token& stop) { run(stop); }) {}

  [[nodiscard]] bool is_current() const noexcept { return current_; }
  [[nodiscard]] std::string last_failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      auto pause = std::chrono::milliseconds(0);
      opened_.reset();
      try {
        if (version_.empty()) {
          list(stop);
        }
        pause = watch(stop);
      } catch (const api_error& failure) {
        if (stop.stop_requested()) {
          return;
        }
        pause = failure.gone() ? after_gone(failure) : after_failure(failure);
        pause = std::max<std::chrono::milliseconds>(pause, failure.retry_after());
      } catch (const std::exception& failure) {
        if (stop.stop_requested()) {
          return;
        }
        pause = after_failure(failure);
      }
      wait(pause, stop);
    }
  }

  void list(const std::stop_token& stop) {
    const json collection = through_.list(path_, selector_, stop);
    const std::string version = version_of(collection);
    if (version.empty()) {
      throw error(errc::protocol_error,
                  "list",
                  path_,
                  "the list has no resourceVersion",
                  "check that the path is a collection's");
    }
    to_.listed(collection.at("items").get<std::vector<json>>());
    version_ = version;
  }

  /// The delay before the next stream.
  std::chrono::milliseconds watch(const std::stop_token& stop) {
    const auto start = clock::now();
    bool any = false;
    through_.watch(
        path_,
        version_,
        selector_,
        [&](const watch_event& event) {
          take(event);
          any = true;
        },
        stop,
        [this] { on_opened(); });
    if (any || clock::now() - start >= min_watch) {
      reset_backoff();
      return std::chrono::milliseconds(0);
    }
    return backoff_.next();
  }

  void take(const watch_event& event) {
    std::string version = version_of(event.object);
    if (version.empty()) {
      throw error(errc::protocol_error,
                  "watch",
                  path_,
                  "an event has no resourceVersion",
                  "check that the path is a collection's");
    }
    if (event.type != "BOOKMARK") {
      try {
        to_.event(event);
      } catch (...) {
        // It is unknown how much of the event was handled: list again.
        version_.clear();
        throw;
      }
    }
    version_ = std::move(version);
    reset_backoff();
  }

  /// The stream is open and has delivered data or lasted long enough.
  void reset_backoff() {
    backoff_.reset();
    was_gone_ = false;
  }

  void on_opened() {
    opened_ = clock::now();
    if (failures_ >= logged_failures) {
      const auto time = std::chrono::duration_cast<std::chrono::seconds>(clock::now() - failing_);
      base::log(
          log_level::info,
          fmt::format(
              "watch \"{}\": recovered after {} failures in {} s", path_, failures_, time.count()));
    }
    failures_ = 0;
    const std::lock_guard lock(mutex_);
    failure_.clear();
    current_ = true;
  }

  std::chrono::milliseconds after_failure(const std::exception& failure) {
    if (failures_++ == 0) {
      failing_ = clock::now();
    }
    if (failures_ == logged_failures) {
      base::log(log_level::warning, fmt::format("{}; retrying", failure.what()));
    }
    record_failure(failure);
    return backoff_.next();
  }

  /// The server is reachable but no longer has the events since the last version. Repeated 410s are
  /// delayed.
  std::chrono::milliseconds after_gone(const std::exception& failure) {
    version_.clear();
    const bool again = std::exchange(was_gone_, true);
    if (!again) {
      backoff_.reset();
    }
    record_failure(failure);
    return again ? backoff_.next() : std::chrono::milliseconds(0);
  }

  void record_failure(const std::exception& failure) {
    if (opened_ && clock::now() - *opened_ >= min_watch) {
      reset_backoff();
    }
    {
      const std::lock_guard lock(mutex_);
      failure_ = failure.what();
      current_ = false;
    }
    if (to_.failed) {
      to_.failed(failure);
    }
  }

  void wait(std::chrono::milliseconds time, const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    stopped_.wait_for(lock, stop, time, [] { return false; });
  }

  const client& through_;
  std::string path_;
  std::string selector_;
  handler to_;
  std::string version_;  ///< used by the thread only; empty: not listed
  base::backoff backoff_;
  // Used by the thread only.
  std::optional<clock::time_point> opened_;  ///< when the current stream was opened
  bool was_gone_ = false;                    ///< since the last useful stream
  unsigned failures_ = 0;                    ///< since a stream was opened
  clock::time_point failing_;                ///< time of the first of `failures_`
  mutable std::mutex mutex_;
  std::condition_variable_any stopped_;
  std::string failure_;
  std::atomic<bool> current_{false};
  std::jthread thread_;
};

collection_watch::collection_watch(const client& through,
                                   std::string path,
                                   std::string field_selector,
                                   handler handler)
    : impl_(std::make_unique<impl>(
          through, std::move(path), std::move(field_selector), std::move(handler))) {}

collection_watch::~collection_watch() = default;

bool collection_watch::is_current() const noexcept {
  return impl_->is_current();
}

std::string collection_watch::last_failure() const {
  return impl_->last_failure();
}

}  // namespace gpushm::api_client
