// SPDX-License-Identifier: Apache-2.0
#include "containers/yaml/problem.hpp"

#include <fmt/core.h>

namespace gpushm::yaml {

std::string to_string(const problem& found) {
  const std::string position =
      found.line > 0 ? fmt::format(":{}:{}", found.line, found.column) : "";
  return fmt::format("{}{}: {} [{}]", found.file, position, found.text, found.rule);
}

}  // namespace gpushm::yaml
