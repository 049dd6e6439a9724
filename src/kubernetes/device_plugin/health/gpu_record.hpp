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

 private:
  void record_critical(std::string why, bool needs_reset, time_point now);
  void clear_critical();

  gpu_status last_;
  std::string critical_;  ///< the last critical event; empty: none
  bool needs_reset_ = false;
  time_point when_;
};

/// "Xid 79 (the GPU has fallen off the bus)".
[[nodiscard]] std::string xid_text(std::uint64_t number);

}  // namespace gpushm::device_plugin
