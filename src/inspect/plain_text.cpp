// SPDX-License-Identifier: Apache-2.0
#include "inspect/plain_text.hpp"

#include <algorithm>

#include "base/names.hpp"

namespace gpushm::inspect {

namespace {

void wrap_line(std::string& all, std::string_view text, std::size_t indent, std::size_t columns) {
  std::string line;
  const auto end_line = [&] {
    all += (line.empty() ? "" : std::string(indent, ' ')) + line + "\n";
    line.clear();
  };
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (!line.empty() && indent + width(line) + 1 + width(word) > columns) {
      end_line();
    }
    line += (line.empty() ? "" : " ") + std::string(word);
  }
  end_line();
}

/// How many bytes the character at the start of `text` has; 0 when it is none.
std::size_t character(std::string_view text) {
  for (std::size_t size = 1; size <= std::min<std::size_t>(4, text.size()); ++size) {
    if (base::is_utf8(text.substr(0, size))) {
      return size;
    }
  }
  return 0;
}

bool is_control(std::string_view one) {
  const auto first = static_cast<unsigned char>(one[0]);
  if (one.size() == 1) {
    return first < 0x20 || first == 0x7F;
  }
  const auto second = static_cast<unsigned char>(one[1]);
  // U+0080 to U+009F: terminals may take them for commands. U+202A and the like turn the direction
  // of writing.
  return (first == 0xC2 && second < 0xA0) ||
         (one.size() == 3 && first == 0xE2 &&
          ((second == 0x80 && static_cast<unsigned char>(one[2]) >= 0xA8 &&
            static_cast<unsigned char>(one[2]) <= 0xAE) ||
           (second == 0x81 && static_cast<unsigned char>(one[2]) >= 0xA6 &&
            static_cast<unsigned char>(one[2]) <= 0xA9)));
}

}  // namespace

std::size_t width(std::string_view text) noexcept {
  std::size_t columns = 0;
  for (const char each : text) {
    columns += (static_cast<unsigned char>(each) & 0xC0U) != 0x80U ? 1 : 0;
  }
  return columns;
}

std::string wrapped(std::string_view text, std::size_t indent, std::size_t columns) {
  std::string all;
  while (true) {
    const auto end = text.find('\n');
    wrap_line(all, text.substr(0, end), indent, columns);
    if (end == std::string_view::npos) {
      return all;
    }
    text.remove_prefix(end + 1);
  }
}

std::string harmless(std::string_view text) {
  std::string all;
  while (!text.empty()) {
    const std::size_t size = character(text);
    if (size == 0 || is_control(text.substr(0, size))) {
      all += '?';
    } else {
      all += text.substr(0, size);
    }
    text.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return all;
}

}  // namespace gpushm::inspect
