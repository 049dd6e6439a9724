// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "base/names.hpp"

namespace gpushm::core {

/// Finds the name nearest to a misspelt one, one candidate after the other. Looks at no more than
/// 1,000 candidates: a typo is not worth stalling a broker for.
///
/// Distinct objects: safe. Shared objects: unsafe.
class near_match {
 public:
  explicit near_match(std::string_view wanted);
  /// False when enough candidates were seen.
  bool consider(std::string_view candidate);
  /// Empty when nothing was near enough: a third of the wanted name's length, at least 1, at most 3
  /// edits.
  [[nodiscard]] std::string_view best() const noexcept { return best_; }

 private:
  std::string_view wanted_;
  std::string_view best_;
  std::size_t best_distance_;
  std::size_t left_ = 1'000;
};

}  // namespace gpushm::core
