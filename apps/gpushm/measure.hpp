// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "support/child_process.hpp"

namespace gpushm::cli {

struct measured_gpu {
  int ordinal = 0;  ///< as CUDA numbers them here
  std::string uuid;
  std::string name;
};

/// GPU `reader` copying from memory of GPU `owner`; the same GPU twice for copies within it.
struct measured_pair {
  std::string reader;   ///< UUID
  std::string owner;    ///< UUID
  std::string problem;  ///< why there are no numbers: "no peer access", or the driver's words
  /// The fastest of several copies, after one that does not count; each byte counted once. What
  /// the reader's copy engine reaches with copies of `copy_bytes`.
  double bytes_per_second = 0;
  std::uint64_t copy_bytes = 0;  ///< the size that was fastest
  /// Of one copy of 16 bytes, in a train of copies queued on a stream: the time of the train by
  /// events divided by its copies, and of several trains the median. Longer than the wire's own
  /// when the CPU cannot queue as fast.
  std::chrono::nanoseconds latency{0};
  /// Import of an exported chunk of `mapped_bytes`, from descriptor to usable address (import,
  /// reserve, map, set access), with nothing else of that GPU mapped: what a first open costs.
  std::chrono::nanoseconds mapping_time{0};
  std::uint64_t mapped_bytes = 0;
};

/// What was measured between all GPUs that CUDA shows this process. One pair at a time; for each
/// direction, as results may differ. Memory is one virtual memory chunk at the owner, up to 256 MiB
/// and at most a quarter of what is free, mapped for the reader alone, and as much plain memory at
/// the reader; copies are cuMemcpyDtoDAsync on a stream of the reader, timed by its events. Other
/// work on the GPUs makes the numbers worse.
struct measurement {
  std::vector<measured_gpu> gpus;    ///< in CUDA's order
  std::vector<measured_pair> pairs;  ///< readers in that order, for each all owners
};

/// Measures in a child process, which is killed at `until`: a broken driver costs that and not this
/// process. `program` has the command `measure-worker`; empty: the running program. Throws `error`:
/// driver_unavailable, driver_error (what the child said), timed_out, peer_died (it crashed, with
/// the signal), system_error.
[[nodiscard]] measurement measure_gpus(app::deadline until, const std::string& program = {});

}  // namespace gpushm::cli
