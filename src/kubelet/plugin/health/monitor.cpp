// SPDX-License-Identifier: Apache-2.0
#include "kubelet/plugin/health/monitor.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/text.hpp"
#include "driver/nvml.hpp"
#include "gpushm/error.hpp"
#include "kubelet/plugin/health/gpu_record.hpp"
#include "kubelet/plugin/health/gpu_watch.hpp"

namespace gpushm::plugin {

namespace {

using clock = std::chrono::steady_clock;

/// Time limit for the thread to exit while no NVML call blocks it.
constexpr std::chrono::seconds end_patience{1};

std::atomic<bool>& left_behind() noexcept {
  static std::atomic<bool> any{false};
  return any;
}

}  // namespace

void change_application_xids(health_options& options,
                             std::string_view text,
                             std::string_view what) {
  health_options changed = options;
  for (const std::string_view part : base::split(text, ",")) {
    std::string_view each = base::trim(part);
    if (each == "all" || each == "xids") {
      changed.any_xid = false;
      continue;
    }
    const bool out = each.starts_with('-');
    if (out || each.starts_with('+')) {
      each.remove_prefix(1);
    }
    const auto number = base::number<std::uint64_t>(each);
    if (!number) {
      throw error(errc::invalid_argument,
                  std::string("set ").append(what),
                  base::trim(part),
                  "not an Xid",
                  "write comma-separated numbers, with - in front of critical ones, or all");
    }
    if (out) {
      changed.application_xids.erase(*number);
    } else {
      changed.application_xids.insert(*number);
    }
  }
  options = std::move(changed);
}

class health_monitor::impl {
 public:
  impl(health_options options, listener to) : options_(std::move(options)), to_(std::move(to)) {}

  /// The thread shares ownership of `own`, so that it can outlive its monitor.
  static void start(const std::shared_ptr<impl>& own) {
    own->thread_ = std::thread([own, stop = own->stop_.get_token()] {
      own->run(stop);
      const std::lock_guard lock(own->end_mutex_);
      own->ended_ = true;
      own->end_.notify_all();
    });
  }

  void stop() {
    stop_.request_stop();
    {
      // Waits for a listener call in progress; none begins after this.
      const std::lock_guard lock(listener_mutex_);
      closed_ = true;
    }
    std::unique_lock lock(end_mutex_);
    if (end_.wait_for(lock, options_.wait + end_patience, [this] { return ended_; })) {
      lock.unlock();
      thread_.join();
      return;
    }
    lock.unlock();
    base::log(log_level::warning,
              "NVML does not answer: abandoned the thread that watches the GPUs");
    left_behind() = true;
    thread_.detach();
  }

  [[nodiscard]] std::map<std::string, gpu_health> gpus() const {
    const std::lock_guard lock(mutex_);
    return told_;
  }

  [[nodiscard]] std::chrono::milliseconds silent_for() const noexcept {
    return std::chrono::duration_cast<std::chrono::milliseconds>(clock::now() - answered_.load());
  }

 private:
  void run(const std::stop_token& stop) {
    const driver::nvml_library* nvml = nullptr;
    for (bool first = true; nvml == nullptr && !stop.stop_requested(); first = false) {
      if (!first) {
        driver::nvml_library::try_again();
      }
      nvml = driver::nvml_library::try_instance();
      answered_ = clock::now();
      if (nvml == nullptr) {
        pause(stop, options_.poll_interval);
      } else if (!first) {
        tell_layout("a driver is available");
      }
    }
    if (nvml != nullptr) {
      gpu_watch watch(*nvml);
      while (!stop.stop_requested()) {
        turn(watch, stop);
        answered_ = clock::now();
      }
    }
  }

  void turn(gpu_watch& watch, const std::stop_token& stop) {
    const auto now = clock::now();
    if (now >= next_look_) {
      next_look_ = now + options_.poll_interval;
      look(watch);
      return;
    }
    const auto until_look = std::chrono::ceil<std::chrono::milliseconds>(next_look_ - now);
    const auto patience = std::min(options_.wait, until_look);
    gpu_event event;
    switch (watch.wait(patience, event)) {
      case gpu_watch::outcome::event:
        happened(event);
        break;
      case gpu_watch::outcome::nothing:
        break;
      case gpu_watch::outcome::failed:
        // A lost GPU makes waiting impossible until the event set is recreated.
        begin_again_ = true;
        pause(stop, patience);
        break;
    }
  }

  void happened(const gpu_event& event) {
    if (event.uuid.empty()) {
      next_look_ = {};
      return;
    }
    gpu_record& record = records_[event.uuid];
    if (event.memory_error) {
      record.memory_error(clock::now());
    } else if (!options_.any_xid || options_.application_xids.count(event.xid) > 0) {
      base::log(log_level::info,
                std::string(event.uuid)
                    .append(": ")
                    .append(xid_text(event.xid))
                    .append(", an application error"));
      return;
    } else {
      record.xid(event.xid, clock::now());
    }
    tell(event.uuid, record.health());
  }

  void look(gpu_watch& watch) {
    const poll_result seen = watch.look();
    const auto now = clock::now();
    std::string changed;
    bool came_back = false;
    for (const auto& [uuid, gpu] : seen.gpus) {
      const auto [layout, is_new] = layouts_.emplace(uuid, gpu.layout);
      if (is_new && looked_) {
        changed = std::string(uuid).append(" was added");
      } else if (layout->second != gpu.layout) {
        changed = std::string(uuid).append(" has a different MIG layout");
        layout->second = gpu.layout;
      }
      gpu_record& record = records_[uuid];
      came_back = came_back || is_new || (!record.answers() && gpu.look.answers);
      record.looked(gpu.look, now, options_.quiet);
    }
    for (auto& [uuid, record] : records_) {
      if (seen.gpus.count(uuid) == 0) {
        record.looked({false, seen.failure.empty() ? watch.why_absent(uuid) : seen.failure, {}},
                      now,
                      options_.quiet);
      }
    }
    looked_ = true;
    // Registers for a GPU's events before reporting its health.
    if (came_back || begin_again_) {
      begin_again_ = false;
      std::vector<std::string> uuids;
      for (const auto& [uuid, gpu] : seen.gpus) {
        uuids.push_back(uuid);
      }
      watch.begin_events(uuids);
    }
    for (const auto& [uuid, record] : records_) {
      tell(uuid, record.health());
    }
    if (!changed.empty()) {
      tell_layout(changed);
    }
  }

  void tell(const std::string& uuid, const gpu_health& health) {
    {
      const std::lock_guard lock(mutex_);
      gpu_health& told = told_[uuid];
      if (told == health) {
        return;
      }
      const bool again = told.healthy == health.healthy;
      told = health;
      if (!again) {
        base::log(health.healthy ? log_level::info : log_level::warning,
                  health.healthy
                      ? std::string(uuid).append(" is healthy again")
                      : std::string(uuid).append(" is unhealthy: ").append(health.reason));
      }
    }
    const std::lock_guard lock(listener_mutex_);
    if (to_.health && !closed_) {
      to_.health(uuid, health);
    }
  }

  void tell_layout(const std::string& what) {
    base::log(log_level::info, std::string("GPUs changed: ").append(what));
    const std::lock_guard lock(listener_mutex_);
    if (to_.layout_changed && !closed_) {
      to_.layout_changed(what);
    }
  }

  void pause(const std::stop_token& stop, std::chrono::milliseconds duration) {
    std::unique_lock lock(pause_mutex_);
    pause_.wait_for(lock, stop, duration, [] { return false; });
  }

  const health_options options_;
  const listener to_;
  mutable std::mutex mutex_;
  std::map<std::string, gpu_health> told_;
  std::mutex listener_mutex_;  // held while the listener is called
  bool closed_ = false;        // guarded by listener_mutex_
  std::stop_source stop_;
  std::atomic<clock::time_point> answered_{clock::now()};
  std::mutex pause_mutex_;
  std::condition_variable_any pause_;
  std::mutex end_mutex_;
  std::condition_variable end_;
  bool ended_ = false;  // guarded by end_mutex_
  // Used by the thread only.
  std::map<std::string, gpu_record> records_;
  std::map<std::string, std::string> layouts_;
  clock::time_point next_look_;
  bool looked_ = false;
  bool begin_again_ = true;
  std::thread thread_;  // joined or detached by `stop`
};

health_monitor::health_monitor(health_options options, listener to)
    : impl_(std::make_shared<impl>(std::move(options), std::move(to))) {
  impl::start(impl_);
}

health_monitor::~health_monitor() {
  impl_->stop();
}

std::map<std::string, gpu_health> health_monitor::gpus() const {
  return impl_->gpus();
}

std::chrono::milliseconds health_monitor::silent_for() const noexcept {
  return impl_->silent_for();
}

bool health_monitor::any_left_behind() noexcept {
  return left_behind();
}

}  // namespace gpushm::plugin
