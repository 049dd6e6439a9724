// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/lost_gpu_reports.hpp"

#include <fmt/core.h>

#include <exception>
#include <utility>

#include "base/report/log.hpp"

namespace gpushm::agent {

namespace {

/// "GPU-… (Xid 79 (the GPU has fallen off the bus))".
std::string text_of(const base::lost_device& device) {
  const std::string why = base::text_of(device.loss);
  return why.empty() ? device.uuid : fmt::format("{} ({})", device.uuid, why);
}

}  // namespace

lost_gpu_reports::lost_gpu_reports(sender send, std::chrono::milliseconds retry_interval)
    : send_(std::move(send)), retry_interval_(retry_interval) {
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

lost_gpu_reports::~lost_gpu_reports() {
  thread_.request_stop();
}

void lost_gpu_reports::add(const base::lost_device& device) {
  const std::lock_guard lock(mutex_);
  put(waiting_, device);
  due_.notify_all();
}

void lost_gpu_reports::put(reports& reports, const base::lost_device& device) {
  const auto [at, is_new] = reports.emplace(device.uuid, device);
  if (!is_new && device.loss.cause == base::loss_cause::xid) {
    at->second = device;
  }
}

void lost_gpu_reports::run(const std::stop_token& stop) {
  for (;;) {
    reports reports;
    {
      std::unique_lock lock(mutex_);
      if (!due_.wait(lock, stop, [this] { return !waiting_.empty(); }) || stop.stop_requested()) {
        return;
      }
      reports.swap(waiting_);
    }
    reports = send_all(std::move(reports));
    if (!reports.empty()) {
      std::unique_lock lock(mutex_);
      for (const auto& [uuid, device] : reports) {
        put(waiting_, device);
      }
      due_.wait_for(lock, stop, retry_interval_, [] { return false; });
    }
  }
}

/// Returns those that were not taken.
lost_gpu_reports::reports lost_gpu_reports::send_all(reports reports) const {
  for (auto at = reports.begin(); at != reports.end();) {
    try {
      send_(at->second);
      base::log(log_level::warning,
                fmt::format("{} is lost: its segments have ended", text_of(at->second)));
      at = reports.erase(at);
    } catch (const std::exception& why) {
      base::log(log_level::error,
                fmt::format("{} is lost, and the broker does not know it yet: {}",
                            text_of(at->second),
                            why.what()));
      ++at;
    }
  }
  return reports;
}

}  // namespace gpushm::agent
