// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/server/manager.hpp"

#include <fmt/core.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/files/directory_watch.hpp"
#include "base/files/syscall.hpp"
#include "base/process/wakeup.hpp"
#include "base/report/log.hpp"
#include "gpushm/error.hpp"
#include "kubernetes/device_plugin/server/leftovers.hpp"
#include "kubernetes/device_plugin/server/served_resource.hpp"

namespace gpushm::device_plugin {

namespace {

using clock = served_resource::clock;
using resources = std::vector<std::shared_ptr<device_plugin::resource>>;

/// Poll interval for the directory when the kernel has no inotify watch left.
constexpr std::chrono::milliseconds poll_interval{500};
constexpr std::chrono::seconds watch_retry_interval{30};

manager_options checked(manager_options options) {
  while (options.directory.size() > 1 && options.directory.ends_with('/')) {
    options.directory.pop_back();
  }
  return options;
}

void check_names(const resources& given) {
  std::set<std::string_view> names;
  for (const auto& each : given) {
    if (each == nullptr) {
      throw error(errc::invalid_argument, "serve", {}, "a resource is missing", "pass no null");
    }
    if (!names.insert(each->name()).second) {
      throw error(errc::invalid_argument,
                  "serve",
                  each->name(),
                  "two resources have this name",
                  "give each resource a different name");
    }
  }
}

}  // namespace

/// The thread and the state that it shares with callers.
class manager::loop {
 public:
  explicit loop(manager_options options)
      : options_(checked(std::move(options))),
        kubelet_path_(options_.directory + "/kubelet.sock"),
        leftovers_(options_.directory, options_.socket_prefix),
        thread_([this] { run(); }) {}

  void set_resources(resources given) {
    const std::lock_guard lock(mutex_);
    target_ = std::move(given);
    wake_.signal();
  }
  [[nodiscard]] std::vector<resource_status> status() const {
    const std::lock_guard lock(mutex_);
    return status_;
  }
  void stop() {
    const std::lock_guard one_at_a_time(stop_mutex_);
    if (!thread_.joinable()) {
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      wake_.signal();
    }
    thread_.join();
  }

 private:
  void run() noexcept {
    for (;;) {
      static_cast<void>(wake_.take());
      std::optional<resources> target;
      {
        const std::lock_guard lock(mutex_);
        if (stopping_) {
          break;
        }
        target.swap(target_);
      }
      const auto now = clock::now();
      check_directory(now);
      if (target) {
        apply(*target, now);
      }
      const surroundings around{is_directory(options_.directory), socket_at(kubelet_path_)};
      if (around.directory && !had_directory_) {
        leftovers_.scan(now);
      }
      had_directory_ = around.directory;
      leftovers_.advance(now);
      auto next =
          std::min(leftovers_.due(), watch_ ? clock::time_point::max() : now + poll_interval);
      for (const auto& each : served_) {
        next = std::min(next, each->advance(now, around));
      }
      update_status();
      wait(next);
    }
    std::vector<std::unique_ptr<served_resource>> all;
    all.swap(served_);
    end(all, ending::immediately);
    update_status();
  }

  /// The kind of change does not matter: `advance` checks everything that may have changed.
  void check_directory(clock::time_point now) noexcept {
    try {
      if (!watch_ && now >= next_watch_try_) {
        next_watch_try_ = now + watch_retry_interval;
        base::directory_watch watch("watch the kubelet's directory");
        watch.set_directories({options_.directory});
        watch_.emplace(std::move(watch));
      }
      if (watch_) {
        watch_->take([&](const auto& change) { had_directory_ = had_directory_ && !change.whole; });
      }
    } catch (const std::exception& why) {
      watch_.reset();
      base::log(log_level::warning,
                fmt::format("device plugin: {}; polling the directory twice a second instead",
                            why.what()));
    }
  }

  void apply(const resources& target, clock::time_point now) {
    std::vector<std::unique_ptr<served_resource>> next;
    for (const auto& each : target) {
      const auto old = std::find_if(served_.begin(), served_.end(), [&](const auto& resource) {
        return resource != nullptr && resource->name() == each->name();
      });
      if (old == served_.end()) {
        next.push_back(std::make_unique<served_resource>(each, options_, wake_, now));
      } else if ((*old)->what() == each) {
        next.push_back(std::move(*old));
      } else if ((*old)->what()->has_preferences() == each->has_preferences()) {
        (*old)->replace(each);
        next.push_back(std::move(*old));
      } else {
        std::vector<std::unique_ptr<served_resource>> replaced;
        replaced.push_back(std::move(*old));
        end(replaced, ending::immediately);
        // The kubelet must detect the end of the old stream first.
        next.push_back(
            std::make_unique<served_resource>(each, options_, wake_, now + options_.first_retry));
      }
    }
    std::erase(served_, nullptr);
    end(served_, ending::after_empty_list);
    served_ = std::move(next);
  }

  void end(std::vector<std::unique_ptr<served_resource>>& resources, ending ending) const {
    for (const auto& each : resources) {
      each->end(ending);
    }
    const auto until = clock::now() + options_.end_timeout;
    for (const auto& each : resources) {
      each->stop(until);
    }
    resources.clear();
  }

  void update_status() {
    std::vector<resource_status> now;
    now.reserve(served_.size());
    for (const auto& each : served_) {
      now.push_back(each->status());
    }
    const std::lock_guard lock(mutex_);
    status_ = std::move(now);
  }

  void wait(clock::time_point until) const {
    std::array<pollfd, 2> waited{pollfd{wake_.fd(), POLLIN, 0},
                                 pollfd{watch_ ? watch_->fd() : -1, POLLIN, 0}};
    int timeout = -1;
    if (until != clock::time_point::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
      timeout = static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
    }
    static_cast<void>(base::retry([&] { return ::poll(waited.data(), waited.size(), timeout); }));
  }

  const manager_options options_;
  const std::string kubelet_path_;
  const base::wakeup wake_{"serve"};
  mutable std::mutex mutex_;
  std::optional<resources> target_;
  std::vector<resource_status> status_;
  bool stopping_ = false;
  std::mutex stop_mutex_;

  // Used by the thread only.
  std::optional<base::directory_watch> watch_;
  clock::time_point next_watch_try_;
  leftovers leftovers_;
  bool had_directory_ = false;
  std::vector<std::unique_ptr<served_resource>> served_;

  std::thread thread_;
};

manager::manager(manager_options options) : loop_(std::make_unique<loop>(std::move(options))) {}

manager::~manager() {
  loop_->stop();
}

void manager::set_resources(std::vector<std::shared_ptr<device_plugin::resource>> given) {
  check_names(given);
  loop_->set_resources(std::move(given));
}

std::vector<resource_status> manager::status() const {
  return loop_->status();
}

void manager::stop() {
  loop_->stop();
}

}  // namespace gpushm::device_plugin
