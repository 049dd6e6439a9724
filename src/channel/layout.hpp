// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "sync/timeline_page.hpp"

/// The memory of a channel that only its producer writes (docs/adr/0032, "Channels"): a timeline
/// page, and a table behind it.
namespace gpushm::channel {

inline constexpr std::uint32_t max_slots = 1'024;
inline constexpr std::uint32_t max_consumers = 64;
inline constexpr std::uint32_t max_metadata_bytes = 256;
/// The largest number of items that a `latest` consumer may hold.
inline constexpr std::uint32_t max_held = 16;
/// Slots begin at multiples of this.
inline constexpr std::uint64_t slot_alignment = 512;

// Timelines of the producer's page.
inline constexpr std::uint32_t announced_timeline = 0;  ///< signaled by the producer's CPU
inline constexpr std::uint32_t published_timeline = 1;  ///< signaled by its stream
inline constexpr std::uint32_t consumers_timeline =
    2;  ///< grows when the list of consumers changes
/// One for each consumer in the table: how many items a `share` consumer was given.
inline constexpr std::uint32_t first_given_timeline = 3;
inline constexpr std::uint32_t producer_timelines = first_given_timeline + max_consumers;
// Timelines of a consumer.
inline constexpr std::uint32_t taken_timeline = 0;     ///< signaled by its CPU
inline constexpr std::uint32_t released_timeline = 1;  ///< signaled by its stream
inline constexpr std::uint32_t attached_timeline = 2;  ///< the generation of the producer's page
inline constexpr std::uint32_t first_held_timeline = 3;

inline constexpr std::uint64_t table_magic = 0x316E'6168'4353'4D47ULL;  // "GMSChan1"
inline constexpr std::uint32_t table_version = 4;

// Everything is in shared memory: never change an offset, raise `table_version` instead.

/// In the row of a slot that its producer has acquired, until the next item in it has a number.
inline constexpr std::uint64_t acquired_row = ~std::uint64_t{0};

/// The content of one slot.
struct alignas(64) row {
  std::atomic<std::uint64_t> item;  ///< 0: none, or `acquired_row`
  std::atomic<std::uint32_t> metadata_bytes;
  std::uint32_t reserved;
  std::array<std::byte, max_metadata_bytes> metadata;
  /// Consumers may have used items up to this one in the slot before `item`: stored before it.
  std::atomic<std::uint64_t> before;
};
static_assert(sizeof(row) == 320);

/// The producer's decision about a consumer.
struct consumer_entry {
  std::atomic<std::uint64_t> id;  ///< the generation of its words' segment; 0: none
  /// Its first item, or the first item that it was given, or one of the two values below.
  std::atomic<std::uint64_t> start;
};
inline constexpr std::uint64_t refused_too_many = ~std::uint64_t{0};  ///< no room for it
inline constexpr std::uint64_t refused_invalid = ~std::uint64_t{1};   ///< its words were not valid

struct table_head {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t slots;
  std::uint64_t slot_bytes;
  std::uint64_t slot_stride;
  std::uint64_t first_item;           ///< of this producer
  std::uint64_t segment;              ///< the generation of the slots' segment
  std::atomic<std::uint32_t> closed;  ///< 1: the producer has ended the channel
  std::uint32_t reserved;
  std::uint64_t last_of_previous;  ///< the last good item of the previous producer; 0: none
  std::array<consumer_entry, max_consumers> consumers;
};
static_assert(sizeof(table_head) == 64 + max_consumers * 16);

/// Where the parts are, from the beginning of the table.
inline constexpr std::size_t rows_offset = sizeof(table_head);
[[nodiscard]] constexpr std::size_t order_offset(std::uint32_t slots) noexcept {
  return rows_offset + std::size_t{slots} * sizeof(row);
}
/// Slots in the order: items of the last four rounds. With fewer, a new producer would not find the
/// slots of the last good items of a previous producer whose CPU was ahead of its stream (decision
/// 32).
[[nodiscard]] constexpr std::uint32_t order_size(std::uint32_t slots) noexcept {
  return 4 * slots;
}
/// Behind the order: for each consumer, the slots of the last items that it was given, by their
/// number modulo the slots.
[[nodiscard]] constexpr std::size_t given_offset(std::uint32_t slots) noexcept {
  return sizeof(std::uint32_t) * order_size(slots) + order_offset(slots);
}
/// The size of a page with such a table, which `sync::is_timeline_page_size` accepts.
[[nodiscard]] constexpr std::size_t page_bytes(std::uint32_t slots) noexcept {
  const std::size_t used = sync::timeline_page_bytes + given_offset(slots) +
                           std::size_t{max_consumers} * slots * sizeof(std::uint32_t);
  return (used + 4'095) / 4'096 * 4'096;
}
static_assert(page_bytes(max_slots) <= sync::max_timeline_page_bytes);

}  // namespace gpushm::channel
