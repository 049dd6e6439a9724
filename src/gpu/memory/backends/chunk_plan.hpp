// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gpushm::memory {

/// Divides a segment into physical allocations: `count` chunks of `chunk_bytes`, the last one of
/// `last_chunk_bytes`. All sizes are multiples of the device's granularity.
struct chunk_plan {
  std::uint64_t chunk_bytes = 0;
  std::uint64_t last_chunk_bytes = 0;
  std::uint32_t count = 0;

  [[nodiscard]] std::uint64_t total_bytes() const noexcept {
    return chunk_bytes * (count - 1) + last_chunk_bytes;
  }
  [[nodiscard]] std::uint64_t size_of(std::uint32_t index) const noexcept {
    return index + 1 == count ? last_chunk_bytes : chunk_bytes;
  }
};

/// `chunk_bytes` 0 means a single chunk. Throws `errc::invalid_argument` for a size of 0, one that
/// overflows when rounded, or one that needs more than 2^32-1 chunks.
[[nodiscard]] chunk_plan plan_chunks(std::uint64_t size_bytes,
                                     std::uint64_t chunk_bytes,
                                     std::uint64_t granularity);

}  // namespace gpushm::memory
