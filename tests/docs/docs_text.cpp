// SPDX-License-Identifier: Apache-2.0
#include "tests/docs/docs_text.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <stdexcept>

namespace gpushm_tests {

namespace fs = std::filesystem;

namespace {

const fs::path root = GPUSHM_SOURCE_DIR;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\n");
  if (first == std::string::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

std::size_t rank_of(const std::string& line) {
  return line.find_first_not_of('#');
}

/// Without `// …` comments.
std::string without_comments(const std::string& source) {
  return std::regex_replace(source, std::regex("//[^\n]*"), "");
}

/// Every match of `pattern` in `text`, as its groups from 1.
std::vector<std::vector<std::string>> matches(const std::string& text, const std::string& pattern) {
  const std::regex expression(pattern);
  std::vector<std::vector<std::string>> result;
  for (std::sregex_iterator at(text.begin(), text.end(), expression); at != std::sregex_iterator();
       ++at) {
    result.emplace_back();
    for (std::size_t i = 1; i < at->size(); ++i) {
      result.back().push_back((*at)[i].str());
    }
  }
  return result;
}

std::string body_of(const std::string& source, const std::string& declaration) {
  const auto found = matches(source, "\\b" + declaration + "\\b[^{;]*\\{([^}]*)\\}");
  if (found.size() != 1) {
    throw std::runtime_error(declaration + " occurs " + std::to_string(found.size()) + " times");
  }
  return found.front().front();
}

}  // namespace

bool has_source_tree() {
  return fs::exists(root / "CMakeLists.txt");
}

std::string source_file(const std::string& path) {
  std::ifstream file(root / path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    throw std::runtime_error("cannot read " + path);
  }
  return text.str();
}

std::vector<std::string> documents() {
  std::vector<std::string> paths{
      "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md"};
  for (const char* const folder : {"docs", "results"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (entry.path().extension() == ".md") {
        paths.push_back(entry.path().lexically_relative(root).string());
      }
    }
  }
  return paths;
}

std::string section(const std::string& text, const std::string& heading) {
  std::string body;
  bool inside = false;
  bool code = false;
  for (const std::string& line : lines_of(text)) {
    code = code != line.starts_with("```");
    if (inside && !code && line.starts_with("#") && rank_of(line) <= rank_of(heading)) {
      break;
    }
    if (inside) {
      body += line + '\n';
    }
    inside = inside || line == heading;
  }
  return body;
}

std::vector<std::vector<std::string>> table_rows(const std::string& text) {
  std::vector<std::vector<std::string>> rows;
  bool in_table = false;
  for (const std::string& line : lines_of(text)) {
    if (!line.starts_with("|")) {
      in_table = false;
      continue;
    }
    if (line.starts_with("|---")) {
      in_table = true;
      continue;
    }
    if (!in_table) {
      continue;  // the header
    }
    std::vector<std::string> cells;
    std::istringstream stream(line.substr(1));
    for (std::string cell; std::getline(stream, cell, '|');) {
      cell.erase(std::remove(cell.begin(), cell.end(), '`'), cell.end());
      cells.push_back(trimmed(cell));
    }
    rows.push_back(std::move(cells));
  }
  return rows;
}

std::vector<std::string> code_blocks(const std::string& text, std::string_view language) {
  std::vector<std::string> blocks;
  bool inside = false;
  bool selected = false;
  for (const std::string& line : lines_of(text)) {
    if (line.starts_with("```")) {
      inside = !inside;
      selected = inside && line.substr(3) == language;
      if (selected) {
        blocks.emplace_back();
      }
    } else if (selected) {
      blocks.back() += line + '\n';
    }
  }
  return blocks;
}

std::vector<std::string> local_links(const std::string& text) {
  std::vector<std::string> targets;
  for (const auto& link : matches(text, R"(\]\(([^)\s]+)\))")) {
    const std::string target = link.front().substr(0, link.front().find('#'));
    if (!target.empty() && target.find("://") == std::string::npos) {
      targets.push_back(target);
    }
  }
  return targets;
}

namespace {

/// The number itself, or the value of a C enumerator in gpushm.h.
std::string value_in_c(const std::string& text) {
  if (!text.starts_with("GPUSHM_")) {
    return text;
  }
  const auto values = matches(without_comments(source_file("include/gpushm/gpushm.h")),
                              "\\b" + text + R"( = (\d+))");
  if (values.size() != 1) {
    throw std::runtime_error("gpushm.h has no value for " + text);
  }
  return values.front().front();
}

}  // namespace

std::vector<numbered_name> enumerators(const std::string& source, const std::string& name) {
  std::vector<numbered_name> names;
  const std::string body = body_of(without_comments(source), "enum class " + name);
  for (const auto& each : matches(body, R"((\w+) = (\w+))")) {
    names.emplace_back(number(value_in_c(each[1])), each[0]);
  }
  if (names.size() != matches(body, R"((\w+)\s*(=\s*\w+\s*)?(,|$))").size()) {
    throw std::runtime_error("an enumerator of " + name + " has no value");
  }
  return names;
}

std::uint64_t number(std::string text) {
  std::erase_if(text, [](char c) { return c == ',' || c == '\''; });
  std::size_t used = 0;
  const std::uint64_t value = std::stoull(text, &used);
  if (used != text.size()) {
    throw std::runtime_error(text + " is not a number");
  }
  return value;
}

std::vector<schema_table> schema_tables(const std::string& schema) {
  std::vector<schema_table> tables;
  for (const auto& table : matches(without_comments(schema), R"(table (\w+) \{([^}]*)\})")) {
    tables.push_back({table[0], {}});
    for (const auto& field : matches(table[1], R"((\w+):([^;]+);)")) {
      tables.back().fields.emplace_back(field[0], trimmed(field[1]));
    }
  }
  return tables;
}

std::vector<std::string> schema_union(const std::string& schema, const std::string& name) {
  std::vector<std::string> members;
  for (const auto& each : matches(body_of(without_comments(schema), "union " + name), "(\\w+)")) {
    members.push_back(each.front());
  }
  return members;
}

}  // namespace gpushm_tests
