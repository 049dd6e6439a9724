// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/files/file.hpp"
#include "base/text/hex.hpp"

namespace gpushm::client_detail {

/// Appends what no other process can guess: it cannot have the name before.
[[nodiscard]] inline std::string unique_name(std::string begin) {
  std::array<std::uint8_t, 8> random{};
  base::random_bytes(random);
  return begin += base::hex_text(random);
}

}  // namespace gpushm::client_detail
