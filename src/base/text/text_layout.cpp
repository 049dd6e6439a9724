// SPDX-License-Identifier: Apache-2.0
#include "base/text/text_layout.hpp"

#include <algorithm>

#include "base/text/text.hpp"

namespace gpushm::base {

namespace {

bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

std::string aligned(std::string_view cell, std::size_t columns, table::align alignment) {
  const std::string padding(columns - std::min(columns, width(cell)), ' ');
  return alignment == table::align::right ? padding + std::string(cell)
                                          : std::string(cell) + padding;
}

std::string without_trailing_blanks(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

/// Wraps text without line feeds; the first line starts with `start`.
std::string wrapped_paragraph(std::string start,
                              std::string_view text,
                              std::size_t indent,
                              std::size_t columns) {
  std::string result;
  std::string line;
  const auto end_line = [&] {
    result += line.empty() ? without_trailing_blanks(start) : start + line + "\n";
    start.assign(indent, ' ');
    line.clear();
  };
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (!line.empty() && width(start) + width(line) + 1 + width(word) > columns) {
      end_line();
    }
    line += (line.empty() ? "" : " ") + std::string(word);
  }
  end_line();
  return result;
}

}  // namespace

std::size_t width(std::string_view text) noexcept {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return !continues_character(c); }));
}

std::string padded(std::string text, std::size_t columns) {
  const std::size_t used = width(text);
  text.append(columns > used ? columns - used : 1, ' ');
  return text;
}

std::string shortened(std::string text, std::size_t columns) {
  while (width(text) > columns) {
    while (continues_character(text.back()) && text.size() > 1) {
      text.pop_back();
    }
    text.pop_back();
  }
  return text;
}

std::string wrapped(std::string_view text, std::size_t indent, std::size_t columns) {
  return wrapped(std::string(indent, ' '), text, indent, columns);
}

std::string wrapped(std::string_view head,
                    std::string_view text,
                    std::size_t indent,
                    std::size_t columns) {
  std::string result;
  std::string first(head);
  while (true) {
    const auto end = text.find('\n');
    result += wrapped_paragraph(std::move(first), text.substr(0, end), indent, columns);
    if (end == std::string_view::npos) {
      return result;
    }
    text.remove_prefix(end + 1);
    first.assign(indent, ' ');
  }
}

void table::add(std::vector<std::string> cells) {
  std::transform(cells.begin(), cells.end(), cells.begin(), printable);
  rows_.push_back(std::move(cells));
}

std::string table::text(empty_columns empty) const {
  std::vector<std::string> titles;
  std::vector<std::size_t> widths;
  std::vector<bool> shown;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::size_t widest = 0;
    for (const auto& row : rows_) {
      widest = std::max(widest, width(row.at(i)));
    }
    shown.push_back(widest > 0 || empty == empty_columns::shown);
    widths.push_back(std::max(widest, width(columns_[i].title)));
    titles.push_back(columns_[i].title);
  }
  const auto line_of = [&](const std::vector<std::string>& row) {
    std::string line;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (shown[i]) {
        line += (line.empty() ? "" : "  ") + aligned(row.at(i), widths[i], columns_[i].alignment);
      }
    }
    return without_trailing_blanks(std::move(line));
  };
  std::string text = line_of(titles);
  for (const auto& row : rows_) {
    text += line_of(row);
  }
  return text;
}

std::string fields_text(const std::vector<std::pair<std::string, std::string>>& fields,
                        std::size_t indent) {
  std::size_t widest = 0;
  for (const auto& [name, value] : fields) {
    widest = std::max(widest, width(name));
  }
  std::string text;
  for (const auto& [name, value] : fields) {
    text += without_trailing_blanks(std::string(indent, ' ') +
                                    aligned(name, widest, table::align::left) + "  " +
                                    printable(value));
  }
  return text;
}

}  // namespace gpushm::base
