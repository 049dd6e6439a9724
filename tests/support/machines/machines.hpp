// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "inspect/facts/facts.hpp"

namespace gpushm_tests {

/// The path of tests/data/machines/NAME.json.
[[nodiscard]] std::string machine_path(const std::string& name);
/// The names of all recordings, sorted.
[[nodiscard]] std::vector<std::string> machine_names();
/// The facts that `gather` derives from the recording `name`. Throws if it does not exist.
[[nodiscard]] gpushm::inspect::facts recorded_facts(const std::string& name);

}  // namespace gpushm_tests
