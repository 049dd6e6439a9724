// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gpushm/types.hpp"

/// Layout of a segment's control page: a memfd made by the broker, sealed with SHRINK|GROW|SEAL,
/// writable by every member of the segment. Its contents are hostile: nothing read from it may be
/// trusted. docs/protocol.md specifies it; never change an offset, raise `control_page_version`
/// instead.
namespace gpushm::wire {

inline constexpr std::uint64_t control_page_magic = 0x314c5254'434d5347ULL;  // "GSMCTRL1"
inline constexpr std::uint32_t control_page_version = 1;
inline constexpr std::size_t control_page_bytes = 16384;
inline constexpr std::uint32_t timeline_count = 64;
inline constexpr std::size_t timelines_offset = 4096;  // 64 × 64 bytes
inline constexpr std::size_t channels_offset = 8192;   // 8 KiB for channel state

struct control_page_header {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t timelines;
  gpushm::epoch epoch;
  gpushm::generation generation;
  std::uint64_t timelines_offset;
  std::uint64_t channels_offset;
  std::uint64_t size_bytes;  // of the control page
};
static_assert(sizeof(control_page_header) == 64);

/// One timeline: a counter alone on its cache line.
struct alignas(64) timeline_cell {
  std::uint64_t value;
  std::uint8_t reserved[56];  // NOLINT(modernize-avoid-c-arrays): a layout in shared memory
};
static_assert(sizeof(timeline_cell) == 64);
static_assert(timelines_offset + timeline_count * sizeof(timeline_cell) <= channels_offset);

[[nodiscard]] control_page_header make_control_page_header(const gpushm::epoch& epoch,
                                                           gpushm::generation generation) noexcept;

}  // namespace gpushm::wire
