// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "apps/gpushm-selftest/check.hpp"
#include "apps/gpushm-selftest/program_tree.hpp"

namespace gpushm::selftest {

/// Returns all checks in the order in which they run, from short to long. `facts`: see
/// `machine_facts`. Precondition: `tree` outlives the checks.
[[nodiscard]] std::vector<check> all_checks(const program_tree& tree,
                                            const json& facts,
                                            bool benchmarks);

}  // namespace gpushm::selftest
