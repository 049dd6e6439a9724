// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/gpushm/inspect/matrix/result.hpp"

namespace gpushm::cli::matrix {

/// Explanations of cells, without duplicates; cells refer to them by letters. Thread-safety:
/// distinct objects: safe; shared objects: unsafe.
class footnotes {
 public:
  /// Returns the letters of a cell's explanation, adding it if it is new; empty if the cell has
  /// none.
  std::string mark(const cell& cell);
  /// In the order of their letters.
  [[nodiscard]] const std::vector<std::string>& texts() const noexcept { return texts_; }
  /// "a" to "z", then "aa".
  [[nodiscard]] static std::string letters(std::size_t index);

 private:
  std::vector<std::string> texts_;
};

/// The text of a cell's footnote; for a failed cell, the failure, its cause and the remedy.
[[nodiscard]] std::string explanation_of(const cell& cell);

/// The prediction and the actual result of a cell that ran.
[[nodiscard]] std::string mismatch_of(const cell& cell);

}  // namespace gpushm::cli::matrix
