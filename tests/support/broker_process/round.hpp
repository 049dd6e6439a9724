// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpushm_tests {

// Constants shared by victims and survivors of the death tests. Several chunks, so that a process
// can die between two of them.
inline constexpr std::uint64_t round_size_bytes = 1UL << 20U;
inline constexpr std::uint64_t round_chunk_bytes = 256UL << 10U;
inline constexpr std::byte round_pattern{0x5a};
inline constexpr std::string_view round_metadata = "metadata of the round";

}  // namespace gpushm_tests
