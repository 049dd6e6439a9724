// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace gpushm::cli {

/// `--spec-dir DIR`, repeatable. `directories` stays empty when it is not given.
CLI::Option* add_spec_directories(CLI::App& app, std::vector<std::string>& directories);

/// Returns `given`, or the default directories if it is empty.
[[nodiscard]] std::vector<std::string> spec_directories(const std::vector<std::string>& given);

}  // namespace gpushm::cli
