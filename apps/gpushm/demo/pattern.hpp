// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gpushm/segment.hpp"

namespace gpushm::cli {

/// Pseudo-random bytes that depend on a seed and on where they are, so that a block that was left
/// out, moved, or written twice is seen like one that was damaged. `offset_bytes` is a multiple
/// of 8.
void make_pattern(std::uint64_t seed, std::uint64_t offset_bytes, std::span<std::byte> block);

/// What a check found.
struct check_result {
  std::uint64_t checked_bytes = 0;
  std::uint64_t wrong_bytes = 0;
  std::uint64_t first_wrong_offset = 0;  ///< when `wrong_bytes` is not 0
};
/// Compares `block`, which begins at `offset_bytes`, with the pattern of `seed`.
[[nodiscard]] check_result check_pattern(std::uint64_t seed,
                                         std::uint64_t offset_bytes,
                                         std::span<const std::byte> block);

/// The same for a whole segment, on several threads. Throw what `segment::read` and
/// `segment::write` throw.
void fill_segment(segment& target, std::uint64_t seed);
[[nodiscard]] check_result check_segment(const segment& source, std::uint64_t seed);
/// Changes one byte in the middle.
void corrupt_segment(segment& target);

}  // namespace gpushm::cli
