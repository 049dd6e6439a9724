// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "inspect/facts/facts.hpp"

namespace gpushm_tests {

/// The path of tests/data/machines/NAME.json.
[[nodiscard]] std::string machine_path(const std::string& name);
/// The machines there are, sorted.
[[nodiscard]] std::vector<std::string> machine_names();
/// What `gather` makes of the recording NAME. Throws when there is none.
[[nodiscard]] gpushm::inspect::facts recorded_facts(const std::string& name);

}  // namespace gpushm_tests
