// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/lost_gpu_reports.hpp"

#include <fmt/core.h>

#include <exception>
#include <utility>

#include "base/report/log.hpp"

namespace gpushm::agent {

lost_gpu_reports::lost_gpu_reports(sender send, std::chrono::milliseconds retry_interval)
    : send_(std::move(send)), retry_interval_(retry_interval) {
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

lost_gpu_reports::~lost_gpu_reports() {
  thread_.request_stop();
}

void lost_gpu_reports::add(const std::string& uuid, const std::string& pci_address) {
  const std::lock_guard lock(mutex_);
  waiting_.insert_or_assign(uuid, pci_address);
  due_.notify_all();
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
      waiting_.merge(reports);
      due_.wait_for(lock, stop, retry_interval_, [] { return false; });
    }
  }
}

/// Returns those that were not taken.
lost_gpu_reports::reports lost_gpu_reports::send_all(reports reports) const {
  for (auto at = reports.begin(); at != reports.end();) {
    try {
      send_(at->first, at->second);
      base::log(log_level::warning, fmt::format("{} is lost: its segments have ended", at->first));
      at = reports.erase(at);
    } catch (const std::exception& why) {
      base::log(log_level::error,
                fmt::format(
                    "{} is lost, and the broker does not know it yet: {}", at->first, why.what()));
      ++at;
    }
  }
  return reports;
}

}  // namespace gpushm::agent
