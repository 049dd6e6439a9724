// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/gpushm/inspect/commands.hpp"

namespace gpushm::cli {

/// `gpushm doctor --ipc`. Throws `error`.
[[nodiscard]] int run_doctor_ipc(const doctor_arguments& arguments);

}  // namespace gpushm::cli
