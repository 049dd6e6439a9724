// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "channel/layout.hpp"
#include "sync/timeline_page.hpp"

namespace gpushm::channel {

class checked_table;

/// A producer's page and table, as all processes read them. Not owning: the memory is mapped as
/// long as this exists. What another process has written can be anything: what is not an atomic is
/// read once, in `of`, and each atomic once for each use. `checked_table` also has the places of
/// slots.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class table_view {
 public:
  /// Returns nullopt if the memory is not a table of this version that fits into `bytes` behind the
  /// page.
  [[nodiscard]] static std::optional<table_view> of(const sync::timeline_page& page,
                                                    const std::byte* table,
                                                    std::size_t bytes) noexcept;

  [[nodiscard]] std::uint32_t slots() const noexcept { return slots_; }
  [[nodiscard]] std::uint64_t slot_bytes() const noexcept { return slot_bytes_; }
  [[nodiscard]] std::uint64_t first_item() const noexcept { return first_item_; }
  [[nodiscard]] std::uint64_t segment() const noexcept { return segment_; }
  /// The same, of slots that lie in the segment `segment` of `segment_bytes` bytes; nullopt: it is
  /// another one, or too small.
  [[nodiscard]] std::optional<checked_table> within(std::uint64_t segment,
                                                    std::uint64_t segment_bytes) const noexcept;
  [[nodiscard]] bool closed() const noexcept {
    return head_->closed.load(std::memory_order_acquire) != 0;
  }
  [[nodiscard]] sync::timeline_reader timeline(std::uint32_t index) const noexcept {
    return {*page_, index};
  }

  /// The item in a slot. Precondition: `slot` is below `slots()`.
  [[nodiscard]] std::uint64_t item_in(std::uint32_t slot) const noexcept {
    return rows_[slot].item.load(std::memory_order_seq_cst);
  }
  /// Consumers may have used items up to this one in the slot before it got `item_in`.
  [[nodiscard]] std::uint64_t before_in(std::uint32_t slot) const noexcept {
    return rows_[slot].before.load(std::memory_order_seq_cst);
  }
  /// The last good item of the previous producer; 0 if there was none.
  [[nodiscard]] std::uint64_t last_of_previous() const noexcept { return last_of_previous_; }
  /// The last good item, when `published_timeline` has ended: of this producer, or of those before.
  /// It is announced and published: a stream may have published one that was never announced.
  [[nodiscard]] std::uint64_t last_good() const noexcept;
  /// The slot of an item; nullopt if the producer has stored what is not a slot.
  [[nodiscard]] std::optional<std::uint32_t> slot_of(std::uint64_t item) const noexcept;
  /// The slot of the item `count` of those that were given to the entry `entry`. As `slot_of`.
  [[nodiscard]] std::optional<std::uint32_t> given_slot(std::uint32_t entry,
                                                        std::uint64_t count) const noexcept;
  /// Copies the metadata, and returns their size.
  [[nodiscard]] std::uint32_t copy_metadata(std::uint32_t slot,
                                            std::span<std::byte> target) const noexcept;
  /// The producer's decision about the consumer `id`; nullopt if it has not decided yet.
  [[nodiscard]] std::optional<std::uint64_t> start_of(std::uint64_t id) const noexcept;
  /// Its entry among the consumers; nullopt if it has none.
  [[nodiscard]] std::optional<std::uint32_t> entry_of(std::uint64_t id) const noexcept;

 private:
  friend class checked_table;
  table_view() = default;
  const sync::timeline_page* page_ = nullptr;
  const table_head* head_ = nullptr;
  const row* rows_ = nullptr;
  const std::atomic<std::uint32_t>* order_ = nullptr;
  const std::atomic<std::uint32_t>* given_ = nullptr;
  std::uint32_t slots_ = 0;
  std::uint64_t slot_bytes_ = 0;
  std::uint64_t slot_stride_ = 0;
  std::uint64_t first_item_ = 0;
  std::uint64_t segment_ = 0;
  std::uint64_t last_of_previous_ = 0;
};

/// A table whose slots lie in the segment that this process has mapped: the only type that has
/// their places.
///
/// Thread-safety: as `table_view`.
class checked_table : public table_view {
 public:
  /// Where a slot begins in the segment. Precondition: `slot` is below `slots()`.
  [[nodiscard]] std::uint64_t offset_of(std::uint32_t slot) const noexcept {
    return slot * slot_stride_;
  }

 private:
  friend class table_view;
  explicit checked_table(const table_view& table) noexcept : table_view(table) {}
};

}  // namespace gpushm::channel
