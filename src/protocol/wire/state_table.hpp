// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "gpushm/types.hpp"

/// Layout of the state table: one memfd per broker process, which no other process can write.
/// Specified in docs/protocol.md; never change an offset, raise `state_table_version` instead.
namespace gpushm::wire {

inline constexpr std::uint64_t state_table_magic = 0x31544154'534d5347ULL;  // "GSMSTAT1"
inline constexpr std::uint32_t state_table_version = 1;
inline constexpr std::size_t state_table_words_offset = 4096;
/// How long a table whose owner has died is taken for paused, if its broker can have a successor.
inline constexpr std::chrono::milliseconds longest_pause{2'000};

/// The low 8 bits of a word. Values are on the wire: never renumber.
enum class slot_state : std::uint8_t {
  free = 0,
  live = 1,
  removed = 2,
  exporter_gone = 3,
  device_lost = 4,
};

// NOLINTBEGIN(modernize-avoid-c-arrays): a layout in shared memory
struct state_table_header {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t slots;
  gpushm::epoch epoch;
  /// 1: when the owner dies, a successor soon sends a table of its own; 0: the domain is gone.
  /// Written once.
  std::uint32_t resumable;
  std::uint8_t reserved[28];
  /// A robust futex word (get_robust_list(2)), which the broker stores and never reads: the id of
  /// its thread; the kernel sets bit 30 when that dies; 0 after an orderly exit. No other part of
  /// the table refers to memory of the broker.
  alignas(64) std::uint32_t owner_futex;
  std::uint8_t owner_rest[60];  ///< 0
};
// NOLINTEND(modernize-avoid-c-arrays)
static_assert(offsetof(state_table_header, slots) == 12);
static_assert(offsetof(state_table_header, epoch) == 16);
static_assert(offsetof(state_table_header, resumable) == 32);
static_assert(offsetof(state_table_header, owner_futex) == 64);
static_assert(sizeof(state_table_header) == 128);

using slot_word = std::atomic<std::uint64_t>;
static_assert(sizeof(slot_word) == 8 && slot_word::is_always_lock_free);

[[nodiscard]] constexpr std::uint64_t make_slot_word(gpushm::generation generation,
                                                     slot_state state) noexcept {
  return (generation << 8U) | static_cast<std::uint64_t>(state);
}

/// Bytes of a table with `slots` words.
[[nodiscard]] constexpr std::size_t state_table_bytes(std::uint32_t slots) noexcept {
  return state_table_words_offset + std::size_t{slots} * sizeof(std::uint64_t);
}

/// A reader's view of a mapped table; verifies which domain it is of. Not owning. Another table of
/// the same size may be mapped in its place meanwhile.
/// Thread-safety: distinct objects: safe; shared objects: safe.
class state_table_view {
 public:
  state_table_view() = default;
  /// `size_bytes` is the size of the mapping. The view is empty unless magic, version, size and
  /// epoch match.
  state_table_view(const void* mapping,
                   std::size_t size_bytes,
                   const gpushm::epoch& epoch) noexcept;

  state_table_view(const state_table_view& other) noexcept { *this = other; }
  state_table_view& operator=(const state_table_view& other) noexcept;
  ~state_table_view() = default;

  explicit operator bool() const noexcept { return header_ != nullptr; }
  /// No system call. False once the kernel has cleaned up after the broker's thread; if a successor
  /// can continue, `longest_pause` after this was first seen through this view.
  [[nodiscard]] bool broker_alive() const noexcept;
  /// No system call. Whether the broker that writes this table lives: what is read afterwards is
  /// what it says. Else a successor, whose table has not come yet, may have changed the states.
  [[nodiscard]] bool has_writer() const noexcept;
  /// Another table is mapped in place of the one before: its pause is over.
  void end_pause() const noexcept { paused_since_.store(0, std::memory_order_relaxed); }
  /// No system call. Never returns `broker_gone`; a slot that another generation has taken over, or
  /// that does not exist, means removed. While the table is paused: the last state that is known;
  /// a segment without one is a successor's, and live.
  [[nodiscard]] segment_state state(std::uint32_t slot,
                                    gpushm::generation generation) const noexcept;
  /// No system call. False once the segment is freed: no process has a lease on it then. While the
  /// table is paused, true.
  [[nodiscard]] bool exists(std::uint32_t slot, gpushm::generation generation) const noexcept;

 private:
  [[nodiscard]] bool may_have_successor() const noexcept;

  const state_table_header* header_ = nullptr;
  const slot_word* words_ = nullptr;
  std::uint32_t slots_ = 0;
  /// When a pause was first seen, in nanoseconds of the steady clock; 0: it is not paused.
  mutable std::atomic<std::int64_t> paused_since_{0};
};

}  // namespace gpushm::wire
