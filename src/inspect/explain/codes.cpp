// SPDX-License-Identifier: Apache-2.0
#include "inspect/explain/codes.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/text/text.hpp"
#include "gpushm/error.hpp"
#include "inspect/explain/match.hpp"

namespace gpushm::inspect {

namespace {

/// Words and classes that other programs also use: alone or with "gpushm." only.
constexpr std::array<std::string_view, 13> common{"invalid_argument",
                                                  "already_exists",
                                                  "permission_denied",
                                                  "timed_out",
                                                  "protocol_error",
                                                  "out_of_memory",
                                                  "driver_error",
                                                  "size_mismatch",
                                                  "forked",
                                                  "message_too_large",
                                                  "address_in_use",
                                                  "system_error",
                                                  "cancelled"};

/// Markdown as plain text: without the marks of code, emphasis and links.
std::string plain(std::string_view markdown) {
  std::string text;
  for (std::size_t i = 0; i < markdown.size(); ++i) {
    const char c = markdown[i];
    if (c == '`' || c == '*' || c == '[') {
      continue;
    }
    if (c == ']' && markdown.substr(i).starts_with("](")) {
      i = std::min(markdown.find(')', i), markdown.size() - 1);
      continue;
    }
    if (c != ']') {
      text += c;
    }
  }
  return text;
}

struct section {
  int number = 0;
  std::string code;
  std::vector<std::string> parts;  ///< paragraphs and list items
};

section parse_section(std::string_view text) {
  const std::string_view head = text.substr(0, text.find('\n'));
  section result;
  result.number = base::number<int>(head.substr(0, head.find('.'))).value_or(0);
  result.code = std::string(base::trim(head.substr(std::min(head.find('.'), head.size() - 1) + 1)));
  bool begins = true;
  while ((text = text.substr(std::min(text.find('\n'), text.size() - 1) + 1)).size() > 0) {
    const std::string_view line = text.substr(0, text.find('\n'));
    const bool item = line.starts_with("- ");
    if (base::trim(line).empty()) {
      begins = true;
    } else if (begins || item) {
      result.parts.push_back(plain(base::trim(item ? line.substr(2) : line)));
      begins = false;
    } else {
      result.parts.back() += " " + plain(base::trim(line));
    }
  }
  return result;
}

/// Removes and returns the part that begins with `name`, without that name.
std::string take(section& section, std::string_view name) {
  const auto part = std::find_if(section.parts.begin(), section.parts.end(), [&](const auto& each) {
    return each.starts_with(name);
  });
  if (part == section.parts.end()) {
    throw error(errc::invalid_argument,
                "read the manual of errors",
                section.code,
                fmt::format("its section has no item \"{}\"", name));
  }
  std::string text(base::trim(std::string_view(*part).substr(name.size())));
  text[0] = base::to_upper(text[0]);
  section.parts.erase(part);
  return text;
}

explain_rule rule_of(section section) {
  explain_rule rule;
  const std::string& code = section.code;
  const std::string python = python_name(code);
  std::string upper = code;
  std::transform(upper.begin(), upper.end(), upper.begin(), base::to_upper);
  rule.manual = true;
  rule.id = "code-" + code;
  std::replace(rule.id.begin(), rule.id.end(), '_', '-');
  rule.title =
      fmt::format("gpushm error {}, in Python gpushm.{} ({})", code, python, section.number);
  rule.phrases = {fmt::format("gpushm.{}", python),
                  fmt::format("gpushm._errors.{}", python),
                  fmt::format("errc::{}", code),
                  fmt::format("ErrorCode.{}", upper),
                  fmt::format(R"("code":"{}")", code),
                  fmt::format(R"("code": "{}")", code)};
  rule.names = {"GPUSHM_ERRC_" + upper};
  auto& words =
      std::find(common.begin(), common.end(), code) == common.end() ? rule.names : rule.alone;
  words.push_back(code);
  words.push_back(python);
  rule.matches = {"gpushm." + python + ": a text", "GPUSHM_ERRC_" + upper};
  rule.unrelated = {"gpushm." + python + "s", "no error"};
  explain_cause cause;
  cause.id = "see-manual";
  cause.prior = 1;
  cause.text = take(section, "Causes:");
  cause.fix = take(section, "Remedy:");
  cause.confirm =
      "the error's text names the operation, the object and the cause, and in parentheses the next "
      "step; gpushm ls; gpushm doctor";
  rule.causes.push_back(std::move(cause));
  for (const std::string& part : section.parts) {
    rule.about += (rule.about.empty() ? "" : "\n") + part;
  }
  return rule;
}

}  // namespace

std::string python_name(std::string_view code) {
  if (code == "system_error") {
    return "SystemCallError";  // SystemError is a class of Python.
  }
  std::string name;
  bool begins = true;
  for (const char c : code) {
    if (c == '_') {
      begins = true;
    } else {
      name += begins ? base::to_upper(c) : c;
      begins = false;
    }
  }
  return name.ends_with("Error") ? name : name + "Error";
}

std::vector<explain_rule> rules_of_codes(std::string_view manual) {
  constexpr std::string_view mark = "\n### ";
  std::vector<explain_rule> rules;
  for (auto begin = manual.find(mark); begin != std::string_view::npos;) {
    const auto end = manual.find(mark, begin + mark.size());
    section one = parse_section(manual.substr(begin + mark.size(), end - begin - mark.size()));
    if (one.number == 0 || one.code.empty()) {
      throw error(errc::invalid_argument,
                  "read the manual of errors",
                  one.code,
                  "a section begins with \"### NUMBER. CODE\"");
    }
    rules.push_back(rule_of(std::move(one)));
    begin = end;
  }
  return rules;
}

}  // namespace gpushm::inspect
