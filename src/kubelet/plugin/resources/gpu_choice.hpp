// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace gpushm::plugin {

using closeness_table = std::vector<std::vector<unsigned int>>;

/// How good a set of boards is.
struct choice_score {
  std::uint64_t inside = 0;  ///< closeness of all its pairs
  std::uint64_t cut = 0;     ///< closeness between it and the boards that are left
  /// More inside first; then less cut, which leaves to the next what is close together.
  [[nodiscard]] bool better_than(const choice_score& other) const {
    return inside != other.inside ? inside > other.inside : cut < other.cut;
  }
  bool operator==(const choice_score&) const = default;
};

/// Of the boards `candidates` and `taken`, which have places in `closeness` and are not there
/// twice.
[[nodiscard]] choice_score score_of(const closeness_table& closeness,
                                    const std::vector<std::size_t>& chosen,
                                    const std::vector<std::size_t>& candidates,
                                    const std::vector<std::size_t>& taken);

/// Above so many combinations boards are chosen one by one.
inline constexpr std::uint64_t most_combinations = 20'000;

/// Which `count` of `candidates` make the best set together with `taken`, in ascending order; of
/// equally good ones the first. All combinations are tried when they are few. Else each board in
/// turn begins a set that always takes the one closest to it, exchanges are made as long as they
/// help, and the best of these sets is taken.
[[nodiscard]] std::vector<std::size_t> choose_boards(const closeness_table& closeness,
                                                     std::vector<std::size_t> candidates,
                                                     const std::vector<std::size_t>& taken,
                                                     std::size_t count);

}  // namespace gpushm::plugin
