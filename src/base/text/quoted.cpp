// SPDX-License-Identifier: Apache-2.0
#include "base/text/quoted.hpp"

#include <cstddef>

#include "base/text/text.hpp"

namespace gpushm::base {

namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

/// YAML readers reject some unescaped characters and treat others as line breaks.
bool must_escape(char32_t value) {
  return value < 0x20U || (value >= 0x7FU && value < 0xA0U) || value == 0x2028U ||
         value == 0x2029U || value == 0xFEFFU || value == 0xFFFEU || value == 0xFFFFU;
}

void append_escaped(std::string& out, char32_t value) {
  constexpr std::string_view digits = "0123456789abcdef";
  out += "\\u";
  for (const unsigned shift : {12U, 8U, 4U, 0U}) {
    out += digits[(value >> shift) & 0xFU];
  }
}

}  // namespace

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    const base::character next = base::first_character(text);
    if (next.length == 0) {
      out += replacement;
      text.remove_prefix(1);
      continue;
    }
    if (next.value == '"' || next.value == '\\') {
      out += '\\';
      out += text.front();
    } else if (next.value == '\n') {
      out += "\\n";
    } else if (next.value == '\t') {
      out += "\\t";
    } else if (must_escape(next.value)) {
      append_escaped(out, next.value);
    } else {
      out += text.substr(0, next.length);
    }
    text.remove_prefix(next.length);
  }
  out += '"';
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t longest = 80;
  std::string out;
  if (text.size() <= longest) {
    append_quoted(out, text);
    return out;
  }
  std::size_t end = longest;
  while ((static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U && end > longest - 4) {
    --end;
  }
  append_quoted(out, text.substr(0, end));
  return out += "...";
}

}  // namespace gpushm::base
