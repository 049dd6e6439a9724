// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "inspect/explain/match.hpp"

namespace gpushm::inspect {

/// Finds many patterns in one pass over a text. Thread-safety: distinct objects: safe; shared
/// objects: safe (immutable).
class pattern_index {
 public:
  /// Precondition: no pattern begins with more than one "*", or is empty.
  explicit pattern_index(std::vector<pattern> patterns);

  struct match {
    std::size_t pattern = 0;  ///< its index
    explain_text::place where;
  };
  /// The first `most` matches of each pattern, which do not overlap; in the text's order.
  [[nodiscard]] std::vector<match> find_all(const explain_text& text, std::size_t most) const;

 private:
  // The first bytes of a pattern select its list. Most positions of a text select an empty one.
  static constexpr std::size_t key_bytes = 3;
  static constexpr std::size_t lists = 1UL << 14U;
  [[nodiscard]] static std::size_t list_of(std::string_view first) noexcept;

  std::vector<pattern> patterns_;
  std::vector<std::vector<std::uint32_t>> by_key_;
  std::bitset<lists> used_;
  std::vector<std::uint32_t> short_;  ///< whose first part is shorter than a key
};

}  // namespace gpushm::inspect
