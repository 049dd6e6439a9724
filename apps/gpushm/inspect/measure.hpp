// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/child_process.hpp"
#include "inspect/topology/topology.hpp"

namespace gpushm::cli {

/// What was measured between all GPUs that CUDA shows this process, in CUDA's order: for each GPU
/// all that it copies from. One pair at a time; for each direction, as results may differ. Memory
/// is one virtual memory chunk at the one copied from, up to 256 MiB and at most a quarter of what
/// is free, mapped for the other alone, and as much plain memory there; copies are
/// cuMemcpyDtoDAsync on a stream of the copying GPU, timed by its events. Other work on the GPUs
/// makes the numbers worse.
///
/// Measures in a child process, which is killed at `until`: a broken driver costs that and not this
/// process. `program` has the command `measure-worker`; empty: the running program. Throws `error`:
/// driver_unavailable, driver_error (what the child said), timed_out, peer_died (it crashed, with
/// the signal), system_error.
[[nodiscard]] std::vector<inspect::measured_pair> measure_gpus(base::deadline until,
                                                               const std::string& program = {});

}  // namespace gpushm::cli
