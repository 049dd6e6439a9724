// SPDX-License-Identifier: Apache-2.0
#include "core/near_match.hpp"

#include <algorithm>

namespace gpushm::core {

near_match::near_match(std::string_view wanted)
    : wanted_(wanted), best_distance_(std::clamp<std::size_t>(wanted.size() / 3, 1, 3) + 1) {}

bool near_match::consider(std::string_view candidate) {
  const std::size_t distance = base::edit_distance(wanted_, candidate, best_distance_ - 1);
  if (distance < best_distance_) {
    best_distance_ = distance;
    best_ = candidate;
  }
  return --left_ > 0 && best_distance_ > 1;
}

}  // namespace gpushm::core
