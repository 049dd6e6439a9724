// SPDX-License-Identifier: Apache-2.0
#include "inspect/facts/plain_text.hpp"

#include <algorithm>

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

}  // namespace gpushm::inspect
