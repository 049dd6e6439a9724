// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "apps/gpushm/json_output.hpp"
#include "containers/yaml/problem.hpp"

namespace gpushm::cli {

/// Omits line and column when the problem concerns the whole file.
inline json to_json(const yaml::problem& found) {
  json one{{"file", found.file}};
  if (found.line > 0) {
    one["line"] = found.line;
    one["column"] = found.column;
  }
  one["rule"] = found.rule;
  one["text"] = found.text;
  return one;
}

inline json to_json(const std::vector<yaml::problem>& found) {
  json all = json::array();
  for (const yaml::problem& each : found) {
    all.push_back(to_json(each));
  }
  return all;
}

}  // namespace gpushm::cli
