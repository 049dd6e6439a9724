// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/gpushm/inspect/matrix/result.hpp"

namespace gpushm::cli::matrix {

/// Explanations of cells, without duplicates; cells refer to them by letters. Distinct objects:
/// safe. Shared objects: unsafe.
class footnotes {
 public:
  /// The letters of a cell's explanation; empty when it has none.
  std::string mark(const cell& of);
  /// In the order of their letters.
  [[nodiscard]] const std::vector<std::string>& texts() const noexcept { return texts_; }
  /// "a" to "z", then "aa".
  [[nodiscard]] static std::string letters(std::size_t index);

 private:
  std::vector<std::string> texts_;
};

/// What a footnote says of a cell: for one that failed the failure, why, and the remedy.
[[nodiscard]] std::string explanation_of(const cell& of);

/// The prediction and the actual result of a cell that ran.
[[nodiscard]] std::string surprise_of(const cell& of);

/// Words of `text` in lines of at most `columns`, the first behind `head`, the others behind
/// `indent` blanks. Each ends with a line feed.
[[nodiscard]] std::string wrapped(std::string_view head,
                                  std::size_t indent,
                                  std::string_view text,
                                  std::size_t columns);

}  // namespace gpushm::cli::matrix
