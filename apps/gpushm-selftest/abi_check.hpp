// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/gpushm-selftest/check.hpp"
#include "apps/gpushm-selftest/program_tree.hpp"

namespace gpushm::selftest {

/// Compiles the comparison of our driver declarations with this machine's cuda.h; skipped where
/// there is no cuda.h or no compiler.
[[nodiscard]] outcome run_abi_check(const program_tree& tree, std::chrono::milliseconds timeout);

}  // namespace gpushm::selftest
