// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "base/segments/device_loss.hpp"

namespace gpushm::agent {

/// Reports lost GPUs to gpushm-brokerd (docs/adr/0006, "Lost devices"), on its own thread, until a
/// report is answered: a broker that does not run or is being replaced hears of them later.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class lost_gpu_reports {
 public:
  /// Throws `std::exception` if the broker has not taken the report.
  using sender = std::function<void(const base::lost_device& device)>;
  /// Throws std::system_error (no thread).
  explicit lost_gpu_reports(
      sender send, std::chrono::milliseconds retry_interval = std::chrono::milliseconds(1'000));
  lost_gpu_reports(const lost_gpu_reports&) = delete;
  lost_gpu_reports& operator=(const lost_gpu_reports&) = delete;
  /// Waits for a call of `send`. Reports that were not taken are dropped.
  ~lost_gpu_reports();

  /// Does not block. Throws std::bad_alloc.
  void add(const base::lost_device& device);

 private:
  using reports = std::map<std::string, base::lost_device>;  ///< by UUID

  /// Adds a report. Keeps an Xid as the cause: the driver loses the GPU after it.
  static void put(reports& reports, const base::lost_device& device);
  void run(const std::stop_token& stop);
  [[nodiscard]] reports send_all(reports reports) const;

  const sender send_;
  const std::chrono::milliseconds retry_interval_;
  std::mutex mutex_;
  std::condition_variable_any due_;
  reports waiting_;  // guarded by mutex_
  std::jthread thread_;
};

}  // namespace gpushm::agent
