// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace gpushm::device_plugin {

using closeness_table = std::vector<std::vector<unsigned int>>;

/// Quality of a set of GPUs.
struct choice_score {
  std::uint64_t inside = 0;  ///< closeness of all its pairs
  std::uint64_t cut = 0;     ///< closeness between the set and the remaining GPUs
  /// Larger `inside` first, then smaller `cut`, which leaves close GPUs together for later
  /// requests.
  [[nodiscard]] bool better_than(const choice_score& other) const {
    return inside != other.inside ? inside > other.inside : cut < other.cut;
  }
  bool operator==(const choice_score&) const = default;
};

/// The score of `chosen` with `taken`. `candidates` and `taken` are indices into `closeness`
/// without duplicates.
[[nodiscard]] choice_score score_of(const closeness_table& closeness,
                                    const std::vector<std::size_t>& chosen,
                                    const std::vector<std::size_t>& candidates,
                                    const std::vector<std::size_t>& taken);

/// Above this number of combinations GPUs are chosen one by one.
inline constexpr std::uint64_t max_combinations = 20'000;

/// Returns, in ascending order, the `count` of `candidates` that form the best set with `taken`;
/// ties go to the first. Tries all combinations up to `max_combinations`. Otherwise grows a set
/// greedily from each GPU, exchanges members while that improves the set, and returns the best.
[[nodiscard]] std::vector<std::size_t> choose_gpus(const closeness_table& closeness,
                                                   std::vector<std::size_t> candidates,
                                                   const std::vector<std::size_t>& taken,
                                                   std::size_t count);

}  // namespace gpushm::device_plugin
