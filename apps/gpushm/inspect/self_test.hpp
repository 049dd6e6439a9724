// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "apps/gpushm/inspect/trial/trial.hpp"
#include "inspect/doctor/predict.hpp"

namespace gpushm::cli {

struct selftest_options {
  std::vector<std::string> gpus;  ///< UUIDs as CUDA lists them here; none: the host alone
  /// For all trials together; what is left then is "not run".
  std::chrono::milliseconds budget{60'000};
  std::chrono::milliseconds trial_timeout{20'000};  ///< for one
  bool accept_fake_chunks = false;                  ///< of the broker: for tests
  std::string program;  ///< has the command `trial-worker`; empty: the running program
};

/// One trial of the memory of this machine.
struct selftest_finding {
  std::string device;  ///< UUID of a GPU, or "host"
  inspect::way how = inspect::way::host;
  bool equal_pids = false;  ///< both sides were to have the same PID, each in its own namespace
  /// Why no namespaces could be made to force equal PIDs; the trial was not run then.
  std::string not_permitted;
  trial_outcome outcome;
  inspect::prediction expected;

  /// Ran, and ended as predicted: also a raw handle that fails because the PIDs are equal.
  [[nodiscard]] bool as_expected() const;
  /// Ran, and ended in another way: what doctor calls a problem.
  [[nodiscard]] bool surprising() const;
};

/// Tries each way of sharing on each GPU, one GPU after the other, and host memory: between two
/// processes in namespaces of their own that have equal PIDs, where this process may make those,
/// and between two that differ. Starts its own broker in a temporary directory. Nothing that
/// happens in a trial reaches this process: crashes and hangs of the driver are findings, and so is
/// whatever keeps a trial from being run. The findings have a fixed order: the host first, then the
/// GPUs as given; of each, equal PIDs first, then ways as in all_ways. Blocks for the budget and a
/// few seconds more at most. Ignores SIGPIPE in this process from here on.
[[nodiscard]] std::vector<selftest_finding> run_selftest(const selftest_options& options);

}  // namespace gpushm::cli
