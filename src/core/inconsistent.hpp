// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "gpushm/error.hpp"

namespace gpushm::core {

/// Saved objects of a domain that contradict each other.
[[nodiscard]] inline error inconsistent(std::string_view cause) {
  return {errc::invalid_argument,
          {},
          {},
          "the saved state is inconsistent: " + std::string(cause),
          "report this as a bug"};
}

/// Throws `inconsistent(otherwise)` unless it holds.
inline void require(bool holds, std::string_view otherwise) {
  if (!holds) {
    throw inconsistent(otherwise);
  }
}

}  // namespace gpushm::core
