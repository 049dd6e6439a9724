// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "kubernetes/device_plugin/health/monitor.hpp"

namespace gpushm::device_plugin {

/// The result of polling one GPU.
struct gpu_status {
  bool responds = true;
  std::string reason = {};  ///< why the GPU does not respond
  std::optional<unsigned int> action =
      {};             ///< recovery action that the driver requests; 0: none; empty: not reported
  bool lost = false;  ///< it does not respond because NVML says that it is lost
  /// It does not respond because it waits for a reset, or because the driver does not have it: it
  /// has been reset when it responds again.
  bool awaits_reset = false;
};

/// The health of one GPU by the rules of `health_monitor`. The caller passes the time.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class gpu_record {
 public:
  using time_point = std::chrono::steady_clock::time_point;

  /// A critical Xid.
  void xid(std::uint64_t number, time_point now);
  void memory_error(time_point now);
  void update(const gpu_status& seen, time_point now, std::chrono::milliseconds quiet);

  [[nodiscard]] gpu_health health() const;
  /// As of the last poll.
  [[nodiscard]] bool responds() const noexcept { return last_.responds; }
  [[nodiscard]] bool is_lost() const noexcept { return last_.lost; }
  /// Whether the last poll observed that the GPU was reset since the poll before.
  [[nodiscard]] bool was_reset() const noexcept { return was_reset_; }

 private:
  void record_critical(std::string why, bool needs_reset, time_point now);
  void clear_critical();

  gpu_status last_;
  std::string critical_;  ///< the last critical event; empty: none
  bool needs_reset_ = false;
  bool was_reset_ = false;
  time_point when_;
};

}  // namespace gpushm::device_plugin
