// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/health/monitor.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "base/report/log.hpp"
#include "base/text/text.hpp"
#include "gpu/driver/nvml.hpp"
#include "gpushm/error.hpp"
#include "kubernetes/device_plugin/health/gpu_record.hpp"
#include "kubernetes/device_plugin/health/gpu_watch.hpp"

namespace gpushm::device_plugin {

namespace {

using clock = std::chrono::steady_clock;

/// Time limit for the thread to exit while no NVML call blocks it.
constexpr std::chrono::seconds end_timeout{1};

std::atomic<bool>& abandoned() noexcept {
  static std::atomic<bool> any{false};
  return any;
}

}  // namespace

void change_application_xids(health_options& options,
                             std::string_view text,
                             std::string_view setting) {
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
                  fmt::format("set {}", setting),
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
  impl(health_options options, listener listener)
      : options_(std::move(options)), to_(std::move(listener)) {}

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
    if (end_.wait_for(lock, options_.wait + end_timeout, [this] { return ended_; })) {
      lock.unlock();
      thread_.join();
      return;
    }
    lock.unlock();
    base::log(log_level::warning,
              "NVML does not respond: abandoned the thread that watches the GPUs");
    abandoned() = true;
    thread_.detach();
  }

  [[nodiscard]] std::map<std::string, gpu_health> gpus() const {
    const std::lock_guard lock(mutex_);
    return reported_;
  }

  [[nodiscard]] std::chrono::milliseconds unresponsive_for() const noexcept {
    return std::chrono::duration_cast<std::chrono::milliseconds>(clock::now() -
                                                                 last_response_.load());
  }

 private:
  void run(const std::stop_token& stop) {
    const driver::nvml_library* nvml = nullptr;
    for (bool first = true; nvml == nullptr && !stop.stop_requested(); first = false) {
      if (!first) {
        driver::nvml_library::try_again();
      }
      nvml = driver::nvml_library::try_instance();
      last_response_ = clock::now();
      if (nvml == nullptr) {
        pause(stop, options_.poll_interval);
      } else if (!first) {
        report_layout_change("a driver is available");
      }
    }
    if (nvml != nullptr) {
      gpu_watch watch(*nvml);
      while (!stop.stop_requested()) {
        step(watch, stop);
        last_response_ = clock::now();
      }
    }
  }

  void step(gpu_watch& watch, const std::stop_token& stop) {
    const auto now = clock::now();
    if (now >= next_poll_) {
      next_poll_ = now + options_.poll_interval;
      poll(watch);
      return;
    }
    const auto until_poll = std::chrono::ceil<std::chrono::milliseconds>(next_poll_ - now);
    const auto timeout = std::min(options_.wait, until_poll);
    gpu_event event;
    switch (watch.wait(timeout, event)) {
      case gpu_watch::outcome::event:
        handle_event(event);
        break;
      case gpu_watch::outcome::nothing:
        break;
      case gpu_watch::outcome::failed:
        // A lost GPU makes waiting impossible until the event set is recreated.
        resubscribe_ = true;
        pause(stop, timeout);
        break;
    }
  }

  void handle_event(const gpu_event& event) {
    if (event.uuid.empty()) {
      next_poll_ = {};
      return;
    }
    // NVML names the instance of an error that its siblings do not notice.
    const bool whole = event.instance.empty();
    const std::string& uuid = whole ? event.uuid : event.instance;
    if (!whole) {
      instances_[uuid].gpu = event.uuid;
    }
    gpu_record& record = whole ? records_[uuid] : instances_[uuid].record;
    if (event.memory_error) {
      record.memory_error(clock::now());
    } else if (!options_.any_xid || options_.application_xids.count(event.xid) > 0) {
      base::log(log_level::info,
                fmt::format("{}: {}, an application error", uuid, base::xid_text(event.xid)));
      return;
    } else {
      record.xid(event.xid, clock::now());
    }
    report(uuid, record.health());
    if (!event.memory_error && base::is_fatal_for_memory(event.xid)) {
      report_loss(uuid, {base::loss_cause::xid, static_cast<std::uint32_t>(event.xid)});
    }
  }

  void poll(gpu_watch& watch) {
    const poll_result seen = watch.poll();
    const auto now = clock::now();
    std::string changed;
    bool is_back = false;
    for (const auto& [uuid, gpu] : seen.gpus) {
      const auto [layout, is_new] = layouts_.emplace(uuid, gpu.layout);
      if (is_new && polled_) {
        changed = uuid + " was added";
      } else if (layout->second != gpu.layout) {
        changed = uuid + " has a different MIG layout";
        layout->second = gpu.layout;
      }
      gpu_record& record = records_[uuid];
      is_back = is_back || is_new || (!record.responds() && gpu.status.responds);
      if (!gpu.pci_address.empty()) {
        addresses_[uuid] = gpu.pci_address;
      }
      update(uuid, record, gpu.status, now);
    }
    for (auto& [uuid, record] : records_) {
      if (seen.gpus.count(uuid) == 0) {
        update(uuid,
               record,
               seen.failure.empty() ? watch.status_of_absent(uuid)
                                    : gpu_status{false, seen.failure, {}},
               now);
      }
    }
    polled_ = true;
    // Registers for a GPU's events before reporting its health.
    if (is_back || resubscribe_) {
      resubscribe_ = false;
      std::vector<std::string> uuids;
      for (const auto& [uuid, gpu] : seen.gpus) {
        uuids.push_back(uuid);
      }
      watch.subscribe(uuids);
    }
    for (const auto& [uuid, record] : records_) {
      report(uuid, record.health());
    }
    poll_instances(seen, now);
    if (!changed.empty()) {
      report_layout_change(changed);
    }
  }

  void poll_instances(const poll_result& seen, clock::time_point now) {
    for (auto each = instances_.begin(); each != instances_.end();) {
      auto& [uuid, instance] = *each;
      const auto gpu = seen.gpus.find(instance.gpu);
      if (gpu != seen.gpus.end()) {
        if (gpu->second.layout.find(uuid) == std::string::npos) {
          const std::lock_guard lock(mutex_);
          reported_.erase(uuid);
          each = instances_.erase(each);
          continue;
        }
        instance.record.update(gpu->second.status, now, options_.quiet);
      }
      report(uuid, instance.record.health());
      ++each;
    }
  }

  void update(const std::string& uuid,
              gpu_record& record,
              const gpu_status& seen,
              clock::time_point now) {
    const bool was_lost = record.is_lost();
    record.update(seen, now, options_.quiet);
    if (record.is_lost() && !was_lost) {
      report_loss(uuid, {base::loss_cause::unreachable});
    } else if (record.was_reset()) {
      report_loss(uuid, {base::loss_cause::reset});
    }
  }

  void report_loss(const std::string& uuid, const base::device_loss& loss) {
    const auto address = addresses_.find(uuid);
    const base::lost_device lost{
        uuid, address == addresses_.end() ? std::string() : address->second, loss};
    const std::lock_guard lock(listener_mutex_);
    if (to_.lost && !closed_) {
      to_.lost(lost);
    }
  }

  void report(const std::string& uuid, const gpu_health& health) {
    {
      const std::lock_guard lock(mutex_);
      gpu_health& last = reported_[uuid];
      if (last == health) {
        return;
      }
      const bool again = last.healthy == health.healthy;
      last = health;
      if (!again) {
        base::log(health.healthy ? log_level::info : log_level::warning,
                  health.healthy ? uuid + " is healthy again"
                                 : fmt::format("{} is unhealthy: {}", uuid, health.reason));
      }
    }
    const std::lock_guard lock(listener_mutex_);
    if (to_.health && !closed_) {
      to_.health(uuid, health);
    }
  }

  void report_layout_change(const std::string& setting) {
    base::log(log_level::info, "GPUs changed: " + setting);
    const std::lock_guard lock(listener_mutex_);
    if (to_.layout_changed && !closed_) {
      to_.layout_changed(setting);
    }
  }

  void pause(const std::stop_token& stop, std::chrono::milliseconds duration) {
    std::unique_lock lock(pause_mutex_);
    pause_.wait_for(lock, stop, duration, [] { return false; });
  }

  const health_options options_;
  const listener to_;
  mutable std::mutex mutex_;
  std::map<std::string, gpu_health> reported_;
  std::mutex listener_mutex_;  // held while the listener is called
  bool closed_ = false;        // guarded by listener_mutex_
  std::stop_source stop_;
  std::atomic<clock::time_point> last_response_{clock::now()};
  std::mutex pause_mutex_;
  std::condition_variable_any pause_;
  std::mutex end_mutex_;
  std::condition_variable end_;
  bool ended_ = false;  // guarded by end_mutex_
  // Used by the thread only.
  struct instance_record {
    std::string gpu;  ///< UUID of the instance's GPU
    gpu_record record;
  };
  std::map<std::string, gpu_record> records_;
  std::map<std::string, instance_record> instances_;  ///< by UUID; those with events
  std::map<std::string, std::string> layouts_;
  std::map<std::string, std::string> addresses_;  ///< of every GPU ever seen
  clock::time_point next_poll_;
  bool polled_ = false;
  bool resubscribe_ = true;
  std::thread thread_;  // joined or detached by `stop`
};

health_monitor::health_monitor(health_options options, listener listener)
    : impl_(std::make_shared<impl>(std::move(options), std::move(listener))) {
  impl::start(impl_);
}

health_monitor::~health_monitor() {
  impl_->stop();
}

std::map<std::string, gpu_health> health_monitor::gpus() const {
  return impl_->gpus();
}

std::chrono::milliseconds health_monitor::unresponsive_for() const noexcept {
  return impl_->unresponsive_for();
}

bool health_monitor::any_abandoned() noexcept {
  return abandoned();
}

}  // namespace gpushm::device_plugin
