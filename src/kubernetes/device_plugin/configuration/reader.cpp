// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/configuration/reader.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/text/quoted.hpp"

namespace gpushm::device_plugin {

namespace {

std::string lowered(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  });
  return out;
}

// The next step for problems of the YAML reader, by rule.
std::string_view step_for(const std::string& rule) {
  if (rule == "type") {
    return "write a value of that kind";
  }
  if (rule == "range") {
    return "write a number in that range";
  }
  if (rule == "key") {
    return "put the key in quotes";
  }
  return {};
}

std::string name_of(const std::string& path) {
  return path.empty() ? "the file" : path;
}

}  // namespace

std::string path_of(const std::string& parent, std::string_view name) {
  return parent.empty() ? std::string(name) : fmt::format("{}.{}", parent, name);
}

configuration_reader::configuration_reader(std::string file, configuration& content)
    : file_(std::move(file)), content_(content), yaml_(file_, yaml_problems_) {}

bool configuration_reader::is_list(const node& node) {
  return yaml::followed(node).is == node::shape::sequence;
}

void configuration_reader::read_mapping(const node& node,
                                        const std::string& path,
                                        std::initializer_list<field> fields) {
  std::set<std::string_view> seen;
  for (const yaml::entry& each : yaml_.entries(node, name_of(path))) {
    const std::string key = lowered(each.key);
    const auto known = std::find_if(fields.begin(), fields.end(), [&](const field& field) {
      return lowered(field.name) == key;
    });
    if (known == fields.end()) {
      warn(*each.key_node,
           fmt::format("{} has the unknown field {}; {}",
                       name_of(path),
                       base::in_quotes(each.key),
                       unknown_field_advice(path, each.key)));
    } else if (!seen.insert(known->name).second) {
      report(
          *each.key_node, path_of(path, known->name) + " appears twice", "remove one of the two");
    } else if (known->read) {
      known->read(*each.value, path_of(path, known->name));
    }
  }
}

void configuration_reader::read_list(
    const node& source,
    const std::string& path,
    const std::function<void(const node&, const std::string&)>& read) {
  std::size_t index = 0;
  for (const node* each : yaml_.elements(source, path)) {
    read(*each, fmt::format("{}[{}]", path, index++));
  }
}

void configuration_reader::report(const node& where, std::string text, std::string next_step) {
  if (problems_.size() < yaml::reader::max_problems) {
    problems_.push_back({where.line, where.column, std::move(text), std::move(next_step)});
  }
}

void configuration_reader::warn(const node& where, const std::string& text) {
  constexpr std::size_t max_warnings = 100;
  if (content_.warnings.size() < max_warnings) {
    content_.warnings.push_back(fmt::format("{}:{}: {}", file_, where.line, text));
  }
}

std::vector<configuration_problem> configuration_reader::take_problems() {
  std::vector<configuration_problem> problems = std::move(problems_);
  for (yaml::problem& each : yaml_problems_) {
    const std::string_view step = step_for(each.rule);
    problems.push_back({each.line, each.column, std::move(each.text), std::string(step)});
  }
  std::stable_sort(problems.begin(), problems.end(), [](const auto& a, const auto& b) {
    return std::tie(a.line, a.column) < std::tie(b.line, b.column);
  });
  return problems;
}

}  // namespace gpushm::device_plugin
