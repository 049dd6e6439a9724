// SPDX-License-Identifier: Apache-2.0
#include "spec/quoted.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace gpushm::cdi {

namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

struct code_point {
  std::uint32_t value = 0;
  std::size_t length = 0;  ///< 0: these bytes are not UTF-8
};

code_point first_of(std::string_view text) {
  const auto byte = [text](std::size_t at) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(text[at]));
  };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80U) {
    return {lead, 1};
  }
  const std::size_t length = lead >= 0xF0U ? 4 : lead >= 0xE0U ? 3 : 2;
  if (lead < 0xC2U || lead > 0xF4U || text.size() < length) {
    return {};
  }
  std::uint32_t value = lead & (0xFFU >> (length + 1));
  for (std::size_t at = 1; at < length; ++at) {
    if ((byte(at) & 0xC0U) != 0x80U) {
      return {};
    }
    value = (value << 6U) | (byte(at) & 0x3FU);
  }
  constexpr std::array<std::uint32_t, 5> least{0, 0, 0x80U, 0x800U, 0x10000U};
  const bool surrogate = value >= 0xD800U && value <= 0xDFFFU;
  return value < least.at(length) || value > 0x10FFFFU || surrogate ? code_point{}
                                                                    : code_point{value, length};
}

/// YAML readers refuse some characters as they are, and take others for line breaks.
bool must_escape(std::uint32_t value) {
  return value < 0x20U || (value >= 0x7FU && value < 0xA0U) || value == 0x2028U ||
         value == 0x2029U || value == 0xFEFFU || value == 0xFFFEU || value == 0xFFFFU;
}

void append_escaped(std::string& out, std::uint32_t value) {
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
    const code_point next = first_of(text);
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

std::string quoted(std::string_view text) {
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

}  // namespace gpushm::cdi
