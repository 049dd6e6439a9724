// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "inspect/doctor/check.hpp"

namespace gpushm::cli {

struct ipc_trial_options {
  std::string library;  ///< libgpushm-ipc.so
  std::string device;   ///< UUID of the GPU
  /// Time limit for all trials; the remaining ones are "not run".
  std::chrono::milliseconds budget{25'000};
  bool accept_fake_chunks = false;  ///< the broker's option, for tests
  std::string program;              ///< provides `trial-worker`; empty: the running program
};

/// Exchanges memory, an event and a descriptor by the driver's own calls between two programs with
/// equal PIDs, each in namespaces and with a /dev/shm of its own, as between two containers: with
/// the library on both sides in one domain ("ipc-trial"), on both sides without a domain
/// ("ipc-no-domain"), and on the importing side only ("ipc-one-side"). Starts a broker in a
/// temporary directory. Trials do not affect this process. Blocks for at most the budget and a few
/// seconds. From this call on, this process ignores SIGPIPE.
[[nodiscard]] std::vector<inspect::check> run_ipc_trials(const ipc_trial_options& options);

}  // namespace gpushm::cli
