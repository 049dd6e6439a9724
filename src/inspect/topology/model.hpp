// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "inspect/topology/topology.hpp"

namespace gpushm::inspect {

// Helpers of the topology renderers. Texts contain no control characters.

struct gpu_group {
  int numa_node = -1;  ///< -1: unknown
  std::vector<std::size_t> gpus;
};
/// GPUs grouped by NUMA node, in ascending order.
[[nodiscard]] std::vector<gpu_group> numa_groups(const facts& facts);

[[nodiscard]] const pair_facts* pair_of(const facts& facts, std::size_t reader, std::size_t owner);
/// Returns null if it was not measured.
[[nodiscard]] const measured_pair* measured_of(const topology& topology,
                                               std::size_t reader,
                                               std::size_t owner);
/// Segments on GPU `gpu` and its instances.
[[nodiscard]] std::vector<const open_segment*> segments_of(const topology& topology,
                                                           std::size_t gpu);
/// Segments in host memory or on GPUs that are not shown because they are hidden from this process.
[[nodiscard]] std::vector<const open_segment*> other_segments(const topology& topology);

/// Whether all pairs have NVLinks through switches.
[[nodiscard]] bool is_switched(const facts& facts);
[[nodiscard]] bool has_links(const facts& facts);

[[nodiscard]] std::string gpu_name(const gpu_facts& gpu);         ///< without "NVIDIA "
[[nodiscard]] std::uint64_t gpu_bytes(const gpu_facts& gpu);      ///< of the whole GPU; 0: unknown
[[nodiscard]] std::string short_address(const std::string& pci);  ///< without a domain of 0
[[nodiscard]] std::string compute_text(const gpu_facts& gpu);     ///< "9.0"
[[nodiscard]] std::string sharing_text(const gpu_facts& gpu);     ///< "time-sliced x4"
/// "Operation not permitted (EPERM)"; empty if it can be opened or is unknown.
[[nodiscard]] std::string open_problem(const gpu_facts& gpu);
/// "3g.40gb" of an instance's long name.
[[nodiscard]] std::string instance_name(const mig_instance_view& instance);
/// "397 GB/s", "2.12 TB/s": decimal, as in data sheets.
[[nodiscard]] std::string rate_text(double bytes_per_second);
/// "no GPU here: libcuda.so.1 was not found".
[[nodiscard]] std::string no_gpu_text(const facts& facts);
/// "driver 580.159.04, CUDA 13.0"; empty if unknown.
[[nodiscard]] std::string driver_text(const facts& facts);

}  // namespace gpushm::inspect
