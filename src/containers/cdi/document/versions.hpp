// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace gpushm::cdi {

/// Versions of the specification, oldest first.
inline constexpr std::array<std::string_view, 8> known_versions{
    "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"};

/// Index in `known_versions`: newer versions have higher indices. Empty for an unknown version.
[[nodiscard]] constexpr std::optional<std::size_t> version_index(std::string_view version) {
  for (std::size_t index = 0; index < known_versions.size(); ++index) {
    if (known_versions[index] == version) {
      return index;
    }
  }
  return std::nullopt;
}

}  // namespace gpushm::cdi
