// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "apps/gpushm/json_output.hpp"
#include "containers/yaml/problem.hpp"

namespace gpushm::cli {

/// Omits line and column when the problem concerns the whole file.
inline json to_json(const yaml::problem& problem) {
  json document{{"file", problem.file}};
  if (problem.line > 0) {
    document["line"] = problem.line;
    document["column"] = problem.column;
  }
  document["rule"] = problem.rule;
  document["text"] = problem.text;
  return document;
}

inline json to_json(const std::vector<yaml::problem>& problems) {
  json document = json::array();
  for (const yaml::problem& each : problems) {
    document.push_back(to_json(each));
  }
  return document;
}

}  // namespace gpushm::cli
