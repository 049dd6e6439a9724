// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <vector>

#include "apps/gpushm/k8s/lint.hpp"

namespace gpushm_tests {

/// The findings for one file, named "file".
inline std::vector<gpushm::k8s::finding> linted(const std::string& text,
                                                const gpushm::k8s::lint_options& options = {}) {
  gpushm::k8s::manifests all;
  all.add(text, "file");
  return gpushm::k8s::lint(all, options);
}

inline std::set<std::string> rules_of(const std::vector<gpushm::k8s::finding>& findings) {
  std::set<std::string> rules;
  for (const gpushm::k8s::finding& each : findings) {
    rules.insert(each.rule);
  }
  return rules;
}

}  // namespace gpushm_tests
