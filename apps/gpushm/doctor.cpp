// SPDX-License-Identifier: Apache-2.0
#include "gpushm/error.hpp"
#include "inspect_commands.hpp"

namespace gpushm::cli {

int run_doctor(const doctor_arguments& /*arguments*/) {
  throw error(errc::system_error, "run command", "doctor", "this build lacks it", {});
}

}  // namespace gpushm::cli
