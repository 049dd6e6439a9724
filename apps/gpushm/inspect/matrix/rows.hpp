// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::cli::matrix {

/// Which GPUs the two sides may open.
enum class gpu_choice : std::uint8_t {
  one_each,  ///< as a device plugin assigns them: the exporter the first, the importer the second
  same_set,  ///< as one ResourceClaim assigns them: both sides all GPUs
};
/// "one each", "same set".
[[nodiscard]] std::string_view to_string(gpu_choice value) noexcept;

/// The PIDs of the two sides, each in its own PID namespace.
enum class pid_values : std::uint8_t { equal, different };
/// "equal", "different".
[[nodiscard]] std::string_view to_string(pid_values value) noexcept;

/// One setting of two pods (or of one pod with two containers, when they share processes).
struct row {
  int number = 0;  ///< 1 to 64, fixed for each setting
  bool host_ipc = false;
  bool host_pid = false;
  bool share_processes = false;  ///< shareProcessNamespace
  bool privileged = false;
  gpu_choice gpus = gpu_choice::one_each;
  pid_values pids = pid_values::equal;
  /// Whether exporter and importer share a PID namespace.
  [[nodiscard]] bool one_pid_namespace() const noexcept { return host_pid || share_processes; }
  friend bool operator==(const row&, const row&) = default;
};

/// All 64 rows: sorted by GPUs, then by shareProcessNamespace, then the eight settings in the order
/// of the published tables, each with equal and with different PIDs.
[[nodiscard]] std::vector<row> all_rows();

/// Why such pods are impossible; empty if they are possible.
[[nodiscard]] std::string why_not_applicable(const row& setting);

}  // namespace gpushm::cli::matrix
