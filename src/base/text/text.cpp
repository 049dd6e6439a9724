// SPDX-License-Identifier: Apache-2.0
#include "base/text/text.hpp"

#include <array>
#include <cstdint>
#include <utility>

namespace gpushm::base {

namespace {

using range = std::pair<char32_t, char32_t>;

// Unicode 15: Cc, Zl, Zp, Default_Ignorable_Code_Point, interlinear annotations; in order.
constexpr std::array hidden{
    range{0x0000, 0x001F},   range{0x007F, 0x009F},   range{0x00AD, 0x00AD},
    range{0x034F, 0x034F},   range{0x061C, 0x061C},   range{0x115F, 0x1160},
    range{0x17B4, 0x17B5},   range{0x180B, 0x180F},   range{0x200B, 0x200F},
    range{0x2028, 0x202E},   range{0x2060, 0x206F},   range{0x3164, 0x3164},
    range{0xFDD0, 0xFDEF},   range{0xFE00, 0xFE0F},   range{0xFEFF, 0xFEFF},
    range{0xFFA0, 0xFFA0},   range{0xFFF0, 0xFFFB},   range{0x1BCA0, 0x1BCA3},
    range{0x1D173, 0x1D17A}, range{0xE0000, 0xE0FFF},
};

void append_escape(std::string& out, char32_t value, std::size_t digits) {
  constexpr std::string_view hex = "0123456789abcdef";
  out += digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U";
  for (std::size_t left = digits; left > 0; --left) {
    out += hex[(value >> (4 * (left - 1))) & 0xFU];
  }
}

std::string escaped(std::string_view text, bool keep_line_feeds) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const character next = first_character(text);
    if (next.length == 0) {
      append_escape(out, static_cast<unsigned char>(text.front()), 2);
      text.remove_prefix(1);
      continue;
    }
    if (is_control_or_invisible(next.value) && !(keep_line_feeds && next.value == U'\n')) {
      append_escape(out, next.value, next.length == 1 ? 2 : next.length == 4 ? 8 : 4);
    } else {
      out += text.substr(0, next.length);
    }
    text.remove_prefix(next.length);
  }
  return out;
}

}  // namespace

character first_character(std::string_view text) noexcept {
  const auto byte = [text](std::size_t index) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(text[index]));
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
  for (std::size_t index = 1; index < length; ++index) {
    if ((byte(index) & 0xC0U) != 0x80U) {
      return {};
    }
    value = (value << 6U) | (byte(index) & 0x3FU);
  }
  constexpr std::array<std::uint32_t, 5> least{0, 0, 0x80U, 0x800U, 0x10000U};
  const bool surrogate = value >= 0xD800U && value <= 0xDFFFU;
  return value < least.at(length) || value > 0x10FFFFU || surrogate ? character{}
                                                                    : character{value, length};
}

bool is_control_or_invisible(char32_t value) noexcept {
  if (value >= 0x20 && value < 0x7F) {
    return false;
  }
  if ((value & 0xFFFEU) == 0xFFFEU) {  // the last two code points of each plane are noncharacters
    return true;
  }
  const auto* const found = std::lower_bound(
      hidden.begin(), hidden.end(), value, [](const range& range, char32_t character) {
        return range.second < character;
      });
  return found != hidden.end() && found->first <= value;
}

std::string printable(std::string_view text) {
  return escaped(text, false);
}

std::string printable_lines(std::string_view text) {
  return escaped(text, true);
}

std::string_view directory_of(std::string_view path) {
  const auto slash = path.find_last_of('/');
  if (slash == std::string_view::npos) {
    return "/";
  }
  return slash == 0 ? path.substr(0, 1) : path.substr(0, slash);
}

std::string_view name_of(std::string_view path) {
  return path.substr(path.find_last_of('/') + 1);  // npos + 1 is 0
}

}  // namespace gpushm::base
