// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "inspect/facts/facts.hpp"

namespace gpushm::inspect {

/// Measurements of GPU `from` copying from memory of GPU `to`, which may be the same GPU.
/// Identified by UUID, because CUDA and NVML number GPUs differently.
struct measured_pair {
  std::string from;
  std::string to;
  /// The rate of the fastest of several copies after a warm-up copy, with each byte counted once:
  /// that of the copy engine of `from` with copies of `copy_bytes`. 0: not measured.
  double bytes_per_second = 0;
  /// The time of one copy of 16 bytes: the duration of a train of copies on a stream, timed by
  /// events and divided by the number of copies; the median of several trains. Longer than the
  /// link's latency if the CPU cannot queue copies fast enough. 0: not measured.
  double latency_ns = 0;
  std::string problem;           ///< why there are no values: "no peer access"; empty: measured
  std::uint64_t copy_bytes = 0;  ///< the size that was fastest
  /// Duration of importing an exported chunk of `mapped_bytes`, from descriptor to usable address
  /// (import, reserve, map, set access), with nothing else of that GPU mapped: the cost of a first
  /// open.
  double mapping_ns = 0;
  std::uint64_t mapped_bytes = 0;
};

/// A segment of a broker, shown with its GPU.
struct open_segment {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::string device;  ///< UUID of a GPU or MIG instance; empty: host memory
};

/// The input of the renderers; all members except the facts may be empty.
struct topology {
  facts machine;
  std::vector<measured_pair> measured;
  std::vector<open_segment> segments;
};

/// Tables of at most 100 columns (8 GPUs); names are escaped as `base::printable` does.
[[nodiscard]] std::string topology_text(const topology& topology);
/// A graph for Graphviz.
[[nodiscard]] std::string topology_dot(const topology& topology);
/// An SVG picture; deterministic.
[[nodiscard]] std::string topology_svg(const topology& topology);

}  // namespace gpushm::inspect
