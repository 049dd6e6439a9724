// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpushm::app {

/// A table of text: each column as wide as its widest cell, two blanks between columns, no trailing
/// blanks. Thread-safety: distinct objects: safe; shared objects: unsafe.
class table {
 public:
  enum class align { left, right };
  struct column {
    std::string title;
    align alignment = align::left;
  };

  explicit table(std::vector<column> columns) : columns_(std::move(columns)) {}
  /// `cells`: one text per column, escaped with `base::printable`.
  void add(std::vector<std::string> cells);
  /// The title line and the rows, each with a line feed.
  [[nodiscard]] std::string text() const;

 private:
  std::vector<column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// Lines "name   value" with aligned values, each indented by `indent` blanks and with a line feed.
/// Values are escaped with `base::printable`.
[[nodiscard]] std::string fields_text(
    const std::vector<std::pair<std::string, std::string>>& fields, std::size_t indent = 0);

}  // namespace gpushm::app
