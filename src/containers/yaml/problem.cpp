// SPDX-License-Identifier: Apache-2.0
#include "containers/yaml/problem.hpp"

#include <fmt/core.h>

namespace gpushm::yaml {

std::string to_string(const problem& problem) {
  const std::string position =
      problem.line > 0 ? fmt::format(":{}:{}", problem.line, problem.column) : "";
  return fmt::format("{}{}: {} [{}]", problem.file, position, problem.text, problem.rule);
}

}  // namespace gpushm::yaml
