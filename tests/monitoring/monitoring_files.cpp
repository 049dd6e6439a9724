// SPDX-License-Identifier: Apache-2.0
#include "tests/monitoring/monitoring_files.hpp"

#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <stdexcept>

#include "containers/yaml/tree.hpp"
#include "tests/deploy/manifest.hpp"
#include "tests/docs/docs_text.hpp"

namespace gpushm_tests {

namespace {

/// Calls `take` for the document in `path`, with its root.
template <typename Take>
void with_yaml(const std::string& path, Take&& take) {
  const std::string text = source_file(path);
  gpushm::yaml::tree tree;
  gpushm::yaml::read_yaml(text, tree);
  if (tree.failure || tree.root == nullptr) {
    throw std::runtime_error(path + ": " + (tree.failure ? tree.failure->text : "empty"));
  }
  take(*tree.root);
}

}  // namespace

std::vector<titled_query> documented_queries() {
  std::vector<titled_query> result;
  for (const std::string& block : code_blocks(source_file("docs/monitoring.md"), "promql")) {
    std::istringstream lines(block);
    std::string title;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("# ")) {
        title = line.substr(2);
      } else if (!line.empty()) {
        result.push_back({title, line});
      }
    }
  }
  return result;
}

std::vector<alert_rule> alert_rules() {
  std::vector<alert_rule> result;
  with_yaml("deploy/monitoring/rules.yaml", [&](const node& root) {
    for (const node* const group : elements(find(root, {"groups"}))) {
      for (const node* const rule : elements(find(*group, {"rules"}))) {
        result.push_back({text_at(*rule, {"alert"}),
                          text_at(*rule, {"expr"}),
                          text_at(*rule, {"labels", "severity"}),
                          text_at(*rule, {"annotations", "summary"}),
                          text_at(*rule, {"annotations", "runbook"})});
      }
    }
  });
  return result;
}

std::vector<alert_expectation> alert_expectations() {
  std::vector<alert_expectation> result;
  with_yaml("deploy/monitoring/rules_test.yaml", [&](const node& root) {
    for (const node* const test : elements(find(root, {"tests"}))) {
      for (const node* const each : elements(find(*test, {"alert_rule_test"}))) {
        result.push_back(
            {text_at(*each, {"alertname"}), !elements(find(*each, {"exp_alerts"})).empty()});
      }
    }
  });
  return result;
}

nlohmann::json dashboard() {
  return nlohmann::json::parse(source_file("deploy/monitoring/dashboard.json"));
}

std::vector<std::string> plotted_titles(const std::string& svg) {
  static const std::regex panel(R"(<g class="panel"[^>]*>\n<text class="title"[^>]*>([^<]*)<)");
  std::vector<std::string> result;
  for (std::sregex_iterator at(svg.begin(), svg.end(), panel); at != std::sregex_iterator(); ++at) {
    result.push_back((*at)[1]);
  }
  return result;
}

std::set<std::string> metrics_in(const std::string& expression) {
  static const std::regex name(R"(\b((?:gpushm|process)_[a-z_]+))");
  static const std::regex suffix("_(bucket|sum|count)$");
  std::set<std::string> result;
  for (std::sregex_iterator at(expression.begin(), expression.end(), name);
       at != std::sregex_iterator();
       ++at) {
    result.insert(std::regex_replace((*at)[1].str(), suffix, ""));
  }
  return result;
}

}  // namespace gpushm_tests
