// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/gpushm/inspect/commands.hpp"
#include "inspect/doctor/ipc.hpp"

namespace gpushm::cli {

/// The facts about this process, its container and the domain that it would use, except `mps`.
/// `domains`: the directory of the domains. Blocks for at most a few seconds.
[[nodiscard]] inspect::ipc_facts gather_ipc_facts(const doctor_arguments& arguments,
                                                  const std::string& preload_file,
                                                  const std::string& domains);

/// `gpushm doctor --ipc`. Throws `error`.
[[nodiscard]] int run_doctor_ipc(const doctor_arguments& arguments);

}  // namespace gpushm::cli
