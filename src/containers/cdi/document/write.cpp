// SPDX-License-Identifier: Apache-2.0
#include "containers/cdi/document/write.hpp"

#include <nlohmann/json.hpp>

#include "base/text/quoted.hpp"
#include "containers/cdi/document/document_value.hpp"
#include "containers/yaml/scalar.hpp"

namespace gpushm::cdi {

namespace {

using value = nlohmann::ordered_json;

/// Conservative: whether every YAML parser reads it as a string without quotes.
bool is_plain(std::string_view text) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const std::string_view start = text.starts_with("--") ? text.substr(2) : text;
  if (start.empty() || !(is_letter(start.front()) || text.front() == '/') || text.back() == ':') {
    return false;
  }
  for (const char c : text) {
    if (!is_letter(c) && !(c >= '0' && c <= '9') &&
        std::string_view("/_-.+=@:").find(c) == std::string_view::npos) {
      return false;
    }
  }
  return text.size() < 1000 && !yaml::parses_as_other_type(text);
}

void append_plain_or_quoted(std::string& out, std::string_view text) {
  if (is_plain(text)) {
    out += text;
  } else {
    base::append_quoted(out, text);
  }
}

void append_yaml(std::string& out, const value& value, std::size_t depth);

/// The value after a key or a dash: scalars and empty values stay on the line.
void append_yaml_value(std::string& out, const value& value, std::size_t depth) {
  if (value.is_structured() && !value.empty()) {
    out += '\n';
    append_yaml(out, value, depth);
    return;
  }
  if (value.is_string()) {
    out += ' ';
    append_plain_or_quoted(out, value.get_ref<const std::string&>());
  } else {
    out.append(" ").append(value.dump());
  }
  out += '\n';
}

/// Block style. Begins at the start of a line and ends with a line feed.
void append_yaml(std::string& out, const value& value, std::size_t depth) {
  const std::string indent(depth * 2, ' ');
  for (auto each = value.begin(); each != value.end(); ++each) {
    out += indent;
    if (value.is_array()) {
      out += '-';
      if (each->is_object() && !each->empty()) {
        // Its first key is on the line of the dash.
        const std::size_t start = out.size();
        append_yaml(out, *each, depth + 1);
        out.erase(start, indent.size() + 1);
      } else {
        append_yaml_value(out, *each, depth + 1);
      }
    } else {
      append_plain_or_quoted(out, each.key());
      out += ':';
      append_yaml_value(out, *each, depth + 1);
    }
  }
}

void append_json(std::string& out, const value& value, std::size_t depth) {
  if (value.is_string()) {
    base::append_quoted(out, value.get_ref<const std::string&>());
    return;
  }
  if (!value.is_structured() || value.empty()) {
    out += value.dump();
    return;
  }
  out += value.is_array() ? '[' : '{';
  for (auto each = value.begin(); each != value.end(); ++each) {
    out += each == value.begin() ? "\n" : ",\n";
    out.append((depth + 1) * 2, ' ');
    if (value.is_object()) {
      base::append_quoted(out, each.key());
      out += ": ";
    }
    append_json(out, *each, depth + 1);
  }
  out += '\n';
  out.append(depth * 2, ' ');
  out += value.is_array() ? ']' : '}';
}

}  // namespace

std::string to_text(const document& content, format format) {
  const value value = to_value(content);
  std::string out;
  if (format == format::json) {
    append_json(out, value, 0);
    out += '\n';
  } else {
    out = "---\n";
    append_yaml(out, value, 0);
  }
  return out;
}

}  // namespace gpushm::cdi
