// SPDX-License-Identifier: Apache-2.0
#include "apps/support/table.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace gpushm::app {

namespace {

// Columns of UTF-8 text, one per character; wide characters are not supported.
std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

void append(std::string& line, std::string_view cell, std::size_t columns, table::align alignment) {
  const std::string padding(columns - std::min(columns, width(cell)), ' ');
  if (alignment == table::align::right) {
    line += padding;
  }
  line += cell;
  if (alignment == table::align::left) {
    line += padding;
  }
}

void end_line(std::string& all, std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  all += line + "\n";
}

}  // namespace

void table::add(std::vector<std::string> cells) {
  std::transform(cells.begin(), cells.end(), cells.begin(), base::printable);
  rows_.push_back(std::move(cells));
}

std::string table::text() const {
  std::vector<std::size_t> widths;
  std::vector<std::string> titles;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::size_t widest = width(columns_[i].title);
    for (const auto& row : rows_) {
      widest = std::max(widest, width(row.at(i)));
    }
    widths.push_back(widest);
    titles.push_back(columns_[i].title);
  }
  std::string all;
  const auto add_row = [&](const std::vector<std::string>& row) {
    std::string line;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      line += i == 0 ? "" : "  ";
      append(line, row.at(i), widths[i], columns_[i].alignment);
    }
    end_line(all, std::move(line));
  };
  add_row(titles);
  for (const auto& row : rows_) {
    add_row(row);
  }
  return all;
}

std::string fields_text(const std::vector<std::pair<std::string, std::string>>& fields,
                        std::size_t indent) {
  std::size_t widest = 0;
  for (const auto& [name, value] : fields) {
    widest = std::max(widest, width(name));
  }
  std::string all;
  for (const auto& [name, value] : fields) {
    std::string line(indent, ' ');
    append(line, name, widest, table::align::left);
    line += "  ";
    line += base::printable(value);
    end_line(all, line);
  }
  return all;
}

}  // namespace gpushm::app
