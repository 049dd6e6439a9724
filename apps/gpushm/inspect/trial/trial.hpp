// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/child_process.hpp"
#include "inspect/doctor/predict.hpp"

namespace gpushm::cli {

/// What is tried: the exporter makes memory and shares it in one way, the importer opens it, reads
/// every byte, writes an answer, and the exporter reads that.
struct trial_setup {
  inspect::way how = inspect::way::host;
  std::string exporter_device;  ///< a UUID or ordinal; not used for way::host
  std::string importer_device;  ///< the GPU that uses the memory; empty: the memory's own
  std::string socket;           ///< the broker's, as both sides see it; not used for raw_legacy
  std::uint64_t size_bytes = 4UL << 20U;
};

enum class trial_result : std::uint8_t { works, fails, crashes, not_run };
/// "works", "fails", "crashes", "not run".
[[nodiscard]] std::string_view to_string(trial_result value) noexcept;

struct trial_outcome {
  trial_result result = trial_result::not_run;
  std::string side;  ///< who failed or crashed: "exporter" or "importer"
  /// "CUDA_ERROR_INVALID_CONTEXT (201)", a gpushm code, "wrong data", or "killed by signal 11
  /// (Segmentation fault)"; why it was not run.
  std::string failure;
  std::string text;               ///< the whole message
  std::int32_t exporter_pid = 0;  ///< as each side's own PID namespace numbers it
  std::int32_t importer_pid = 0;
  std::chrono::nanoseconds open_time{0};  ///< of the importer's open alone
  /// Whether the driver says there that GPUDirect RDMA may use the memory; nothing: it is the
  /// host's, or that is not known.
  std::optional<bool> exporter_rdma;
  std::optional<bool> importer_rdma;
};

/// Runs one trial between two programs `gpushm trial-worker`, started in whatever way as processes
/// or containers. Each way is done by another child of theirs, so that a crash costs this trial
/// alone; each way can be tried once with one pair ("not run" after that). A child that hangs is
/// killed at `until` and the outcome is a failure, "timed_out". Blocks until `until`, and a few
/// seconds more for children to be killed. Throws only when one of the two programs itself is gone
/// or does not answer (peer_died, timed_out), could not start (permission_denied: without the right
/// to --own-namespaces; system_error), or says what it should not (protocol_error); the pair is of
/// no use then. SIGPIPE must be ignored in the calling process.
[[nodiscard]] trial_outcome run_trial(base::child_process& exporter,
                                      base::child_process& importer,
                                      const trial_setup& setup,
                                      base::deadline until);

}  // namespace gpushm::cli
