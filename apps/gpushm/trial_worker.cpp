// SPDX-License-Identifier: Apache-2.0
#include "gpushm/error.hpp"
#include "inspect_commands.hpp"

namespace gpushm::cli {

int run_trial_worker(const trial_worker_arguments& /*arguments*/) {
  throw error(errc::system_error, "run command", "trial_worker", "this build lacks it", {});
}

}  // namespace gpushm::cli
