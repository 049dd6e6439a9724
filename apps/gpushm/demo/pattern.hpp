// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gpushm/segment.hpp"

namespace gpushm::cli {

/// Fills `block`, which begins at `offset_bytes` (a multiple of 8), with pseudo-random bytes that
/// depend on the seed and the offset, so that checks detect missing, moved, duplicated and damaged
/// blocks.
void make_pattern(std::uint64_t seed, std::uint64_t offset_bytes, std::span<std::byte> block);

/// The result of a check.
struct check_result {
  std::uint64_t checked_bytes = 0;
  std::uint64_t wrong_bytes = 0;
  std::uint64_t first_wrong_offset = 0;  ///< if `wrong_bytes` is not 0
};
/// Compares `block`, which begins at `offset_bytes`, with the pattern of `seed`.
[[nodiscard]] check_result check_pattern(std::uint64_t seed,
                                         std::uint64_t offset_bytes,
                                         std::span<const std::byte> block);

/// The same for a whole segment, on several threads. Throw as `segment::read` and `segment::write`.
void fill_segment(segment& target, std::uint64_t seed);
[[nodiscard]] check_result check_segment(const segment& source, std::uint64_t seed);
/// Changes the byte in the middle.
void corrupt_segment(segment& target);

}  // namespace gpushm::cli
