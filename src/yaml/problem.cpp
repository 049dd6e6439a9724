// SPDX-License-Identifier: Apache-2.0
#include "yaml/problem.hpp"

namespace gpushm::yaml {

std::string to_string(const problem& found) {
  std::string text = found.file;
  if (found.line > 0) {
    text += ":" + std::to_string(found.line) + ":" + std::to_string(found.column);
  }
  return text + ": " + found.text + " [" + found.rule + "]";
}

}  // namespace gpushm::yaml
