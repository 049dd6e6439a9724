// SPDX-License-Identifier: Apache-2.0
// Layout of text for terminals. The text is UTF-8; each character is one column wide (wide
// characters are not supported).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpushm::base {

/// The columns that `text` occupies.
[[nodiscard]] std::size_t width(std::string_view text) noexcept;

/// Adds blanks up to `columns`, at least one.
[[nodiscard]] std::string padded(std::string text, std::size_t columns);

/// The first `columns` characters.
[[nodiscard]] std::string shortened(std::string text, std::size_t columns);

/// Wraps `text` at blanks into lines of at most `columns` characters, each indented by `indent`
/// blanks and ended by a line feed; keeps line feeds in `text`. A word that does not fit gets a
/// separate line, because commands must not be split.
[[nodiscard]] std::string wrapped(std::string_view text,
                                  std::size_t indent,
                                  std::size_t columns = 100);

/// The same, but the first line starts with `head` instead of the blanks.
[[nodiscard]] std::string wrapped(std::string_view head,
                                  std::string_view text,
                                  std::size_t indent,
                                  std::size_t columns = 100);

/// A table of text: each column as wide as its widest cell, two blanks between columns, no trailing
/// blanks. Thread-safety: distinct objects: safe; shared objects: unsafe.
class table {
 public:
  enum class align { left, right };
  enum class empty_columns { shown, omitted };
  struct column {
    std::string title;
    align alignment = align::left;
  };

  explicit table(std::vector<column> columns) : columns_(std::move(columns)) {}
  /// `cells`: one text per column, escaped with `printable`.
  void add(std::vector<std::string> cells);
  [[nodiscard]] bool empty() const noexcept { return rows_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return rows_.size(); }
  /// The title line and the rows, each with a line feed. `empty`: columns that have only a title.
  [[nodiscard]] std::string text(empty_columns empty = empty_columns::shown) const;

 private:
  std::vector<column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// Lines "name   value" with aligned values, each indented by `indent` blanks and with a line feed.
/// Values are escaped with `printable`.
[[nodiscard]] std::string fields_text(
    const std::vector<std::pair<std::string, std::string>>& fields, std::size_t indent = 0);

}  // namespace gpushm::base
