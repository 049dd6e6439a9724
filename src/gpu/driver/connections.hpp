// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>

namespace gpushm::driver {

inline constexpr const char* connections_variable = "CUDA_DEVICE_MAX_CONNECTIONS";

/// The variable's value as CUDA reads it, 1 to 32; empty: it is not set (CUDA C++ Programming
/// Guide, "CUDA Environment Variables").
[[nodiscard]] inline std::uint32_t connections_in(std::string_view text) noexcept {
  constexpr std::uint32_t usual = 8;
  constexpr std::uint32_t most = 32;
  std::uint32_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value == 0 ? usual : std::min(value, most);
}

/// How many streams of a process may wait for other processes: half of the connections, rounded up,
/// but not the last one, because as many waiting streams as connections stop all streams.
[[nodiscard]] constexpr std::uint32_t waiting_streams_limit(std::uint32_t connections) noexcept {
  return std::min((connections + 1) / 2, connections - 1);
}

}  // namespace gpushm::driver
