// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpushm::app {

/// Columns of text, each as wide as its widest cell, two blanks apart; no blanks at the ends of
/// lines. Distinct objects: safe. Shared objects: unsafe.
class table {
 public:
  enum class align { left, right };
  struct column {
    std::string title;
    align alignment = align::left;
  };

  explicit table(std::vector<column> columns) : columns_(std::move(columns)) {}
  /// `cells` has one text a column, each of which goes through `base::printable`.
  void add(std::vector<std::string> cells);
  /// Title line and rows, each ended by a line feed.
  [[nodiscard]] std::string text() const;

 private:
  std::vector<column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// "name   value" lines with aligned values, each indented by `indent` blanks and ended by a line
/// feed. Values go through `base::printable`.
[[nodiscard]] std::string fields_text(
    const std::vector<std::pair<std::string, std::string>>& fields, std::size_t indent = 0);

}  // namespace gpushm::app
