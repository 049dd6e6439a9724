// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/gpushm-selftest/check.hpp"
#include "apps/gpushm-selftest/program_tree.hpp"

namespace gpushm::selftest {

/// Compares gpushm's driver declarations with this machine's cuda.h by compiling a check. Skipped
/// if cuda.h or a compiler is missing.
[[nodiscard]] outcome run_abi_check(const program_tree& tree, std::chrono::milliseconds timeout);

}  // namespace gpushm::selftest
