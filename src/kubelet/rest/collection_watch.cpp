// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "base/backoff.hpp"
#include "kubelet/rest/client.hpp"

namespace gpushm::kube {

namespace {

using nlohmann::json;
using clock = std::chrono::steady_clock;

// A stream that ends sooner than this counts as a failure when it brought nothing.
constexpr std::chrono::seconds shortest_watch{1};

std::string version_of(const json& object) {
  const json::json_pointer where("/metadata/resourceVersion");
  return object.contains(where) && object.at(where).is_string()
             ? object.at(where).get<std::string>()
             : std::string();
}

}  // namespace

class collection_watch::impl {
 public:
  impl(const client& through, std::string path, std::string field_selector, handler to)
      : through_(through),
        path_(std::move(path)),
        selector_(std::move(field_selector)),
        to_(std::move(to)),
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
        pause = after(failure, failure.gone());
        pause = std::max<std::chrono::milliseconds>(pause, failure.retry_after());
      } catch (const std::exception& failure) {
        pause = after(failure, false);
      }
      wait(pause, stop);
    }
  }

  void list(const std::stop_token& stop) {
    const json all = through_.list(path_, selector_, stop);
    const std::string version = version_of(all);
    if (version.empty()) {
      throw error(errc::protocol_error,
                  "list",
                  path_,
                  "the list has no resourceVersion",
                  "check that the path is a collection's");
    }
    to_.listed(all.at("items").get<std::vector<json>>());
    version_ = version;
  }

  /// How long to wait before the next stream.
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
        [this] { works(); });
    if (any || clock::now() - start >= shortest_watch) {
      backoff_.reset();
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
    // Before the handler: what it was given is not given again.
    version_ = std::move(version);
    backoff_.reset();
    if (event.type != "BOOKMARK") {
      to_.event(event);
    }
  }

  void works() {
    opened_ = clock::now();
    const std::lock_guard lock(mutex_);
    failure_.clear();
    current_ = true;
  }

  std::chrono::milliseconds after(const std::exception& failure, bool is_gone) {
    if (is_gone) {
      version_.clear();
    }
    if (opened_ && clock::now() - *opened_ >= shortest_watch) {
      backoff_.reset();
    }
    const std::lock_guard lock(mutex_);
    failure_ = failure.what();
    current_ = false;
    return backoff_.next();
  }

  void wait(std::chrono::milliseconds time, const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    stopped_.wait_for(lock, stop, time, [] { return false; });
  }

  const client& through_;
  std::string path_;
  std::string selector_;
  handler to_;
  std::string version_;  ///< of the thread; empty: there is no list
  base::backoff backoff_;
  std::optional<clock::time_point> opened_;  ///< of the thread: the stream that is there now
  mutable std::mutex mutex_;
  std::condition_variable_any stopped_;
  std::string failure_;
  std::atomic<bool> current_{false};
  std::jthread thread_;
};

collection_watch::collection_watch(const client& through,
                                   std::string path,
                                   std::string field_selector,
                                   handler to)
    : impl_(std::make_unique<impl>(
          through, std::move(path), std::move(field_selector), std::move(to))) {}

collection_watch::~collection_watch() = default;

bool collection_watch::is_current() const noexcept {
  return impl_->is_current();
}

std::string collection_watch::last_failure() const {
  return impl_->last_failure();
}

}  // namespace gpushm::kube
