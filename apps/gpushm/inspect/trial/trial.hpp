// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/process/child_process.hpp"
#include "inspect/doctor/predict.hpp"

namespace gpushm::cli {

/// A trial: the exporter allocates memory and shares it in one way; the importer opens it, checks
/// every byte and writes a reply, which the exporter checks.
struct trial_setup {
  inspect::way how = inspect::way::host;
  std::string exporter_device;  ///< a UUID or ordinal; not used for way::host
  std::string importer_device;  ///< the GPU that uses the memory; empty: the memory's GPU
  std::string socket;           ///< the broker's socket in both sides; not used by raw ways
  std::uint64_t size_bytes = 4UL << 20U;
  bool measure = false;  ///< also the bandwidth of copies out of the importer's mapping
};

enum class trial_result : std::uint8_t { works, fails, crashes, not_run };
/// "works", "fails", "crashes", "not run".
[[nodiscard]] std::string_view to_string(trial_result value) noexcept;

struct trial_outcome {
  trial_result result = trial_result::not_run;
  std::string side;  ///< the side that failed or crashed: "exporter" or "importer"
  /// "CUDA_ERROR_INVALID_CONTEXT (201)", a gpushm code, "wrong data", "killed by signal 11
  /// (Segmentation fault)", or why it was not run.
  std::string failure;
  std::string text;               ///< the whole message
  std::int32_t exporter_pid = 0;  ///< in each side's own PID namespace
  std::int32_t importer_pid = 0;
  std::chrono::nanoseconds open_time{0};  ///< of the importer's open only
  /// Whether the driver reports on that side that GPUDirect RDMA may use the memory; nullopt: host
  /// memory, or unknown.
  std::optional<bool> exporter_rdma;
  std::optional<bool> importer_rdma;
  std::optional<double> bytes_per_second;  ///< nullopt: not measured
};

/// Runs one trial between two running programs `gpushm trial-worker`, which may be processes or
/// containers. Each program has a separate child for each way, so that a crash affects only this
/// trial; each way can be tested only once with a pair ("not run" after that). A child that hangs
/// is killed at `until` and the outcome is a failure, "timed_out". Blocks until `until` at most,
/// plus a few seconds for killing children. Throws `error` only if one of the two programs itself
/// has exited or does not reply (peer_died, timed_out), could not start (permission_denied:
/// --own-namespaces is not permitted; system_error), or violates the protocol (protocol_error); the
/// pair is then unusable. Precondition: the calling process ignores SIGPIPE.
[[nodiscard]] trial_outcome run_trial(base::child_process& exporter,
                                      base::child_process& importer,
                                      const trial_setup& setup,
                                      base::deadline until);

}  // namespace gpushm::cli
