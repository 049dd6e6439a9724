// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/process/child_process.hpp"
#include "inspect/topology/topology.hpp"

namespace gpushm::cli {

/// Measures between all GPUs that CUDA lists to this process, in CUDA's order: for each copying
/// GPU, all GPUs that it copies from. One pair at a time, and each direction separately, as results
/// may differ. The source is one virtual memory chunk of the GPU copied from, up to 256 MiB and at
/// most a quarter of the free memory, mapped for the copying GPU only; the target is plain memory
/// of the same size on the copying GPU. Copies are cuMemcpyDtoDAsync on a stream of the copying
/// GPU, timed by its events. Concurrent work on the GPUs degrades the results.
///
/// Measures in a child process, which is killed at `until`, so that a broken driver does not affect
/// this process. `program` provides the command `measure-worker`; empty: the running program.
/// Throws `error`: driver_unavailable, driver_error (with the child's message), timed_out,
/// peer_died (the child crashed, with the signal), system_error.
[[nodiscard]] std::vector<inspect::measured_pair> measure_gpus(base::deadline until,
                                                               const std::string& program = {});

}  // namespace gpushm::cli
