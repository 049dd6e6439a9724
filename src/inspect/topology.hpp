// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "inspect/facts.hpp"

namespace gpushm::inspect {

/// What was measured of GPU `from` reading memory of GPU `to`. By UUID, because CUDA and NVML
/// number GPUs differently; both the same: within one GPU.
struct measured_pair {
  std::string from;
  std::string to;
  double bytes_per_second = 0;  ///< one direction; 0: not measured
  double latency_ns = 0;        ///< of one small copy; 0: not measured
  std::string problem;          ///< why there is no number; empty: there are
};

/// A segment of a broker, to be shown with the GPU that it is on.
struct open_segment {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::string device;  ///< UUID of a GPU or MIG instance; empty: host memory
};

/// What is shown; everything but the facts may be empty.
struct topology {
  facts machine;
  std::vector<measured_pair> measured;
  std::vector<open_segment> segments;
};

/// Tables of at most 100 columns (8 GPUs); control characters in names come out as "?".
[[nodiscard]] std::string topology_text(const topology& all);
/// A graph for Graphviz.
[[nodiscard]] std::string topology_dot(const topology& all);
/// A picture, the same for the same input.
[[nodiscard]] std::string topology_svg(const topology& all);

}  // namespace gpushm::inspect
