// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "apps/gpushm/inspect/trial/trial.hpp"
#include "inspect/doctor/predict.hpp"

namespace gpushm::cli {

struct selftest_options {
  std::vector<std::string> gpus;  ///< UUIDs as listed by CUDA; empty: host memory only
  /// Time limit for all trials; the remaining ones are "not run".
  std::chrono::milliseconds budget{60'000};
  std::chrono::milliseconds trial_timeout{20'000};  ///< for each trial
  bool accept_fake_chunks = false;                  ///< the broker's option, for tests
  std::string program;  ///< provides the command `trial-worker`; empty: the running program
};

/// The result of one trial on this machine.
struct selftest_finding {
  std::string device;  ///< UUID of a GPU, or "host"
  inspect::way how = inspect::way::host;
  bool equal_pids = false;  ///< both sides should have the same PID, each in its own namespace
  /// Why no namespaces could be created to force equal PIDs; the trial was then not run.
  std::string not_permitted;
  trial_outcome outcome;
  inspect::prediction expected;

  /// The trial ran and ended as predicted, including raw handles that fail because the PIDs are
  /// equal.
  [[nodiscard]] bool as_expected() const;
  /// The trial ran and did not end as predicted, which doctor reports as a problem.
  [[nodiscard]] bool unexpected() const;
};

/// Tests each way of sharing on each GPU, one GPU after the other, and host memory: between two
/// processes with equal PIDs in separate namespaces, if this process may create those, and between
/// two with different PIDs. Starts a broker in a temporary directory. Trials do not affect this
/// process: crashes and hangs of the driver are findings, as is anything that prevents a trial. The
/// findings have a fixed order: the host first, then the GPUs as given; for each, equal PIDs first,
/// then ways as in all_ways. Blocks for at most the budget and a few seconds. From this call on,
/// this process ignores SIGPIPE.
[[nodiscard]] std::vector<selftest_finding> run_selftest(const selftest_options& options);

}  // namespace gpushm::cli
