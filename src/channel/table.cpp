// SPDX-License-Identifier: Apache-2.0
#include "channel/table.hpp"

#include <algorithm>
#include <limits>

namespace gpushm::channel {

namespace {

/// Another process may store at this moment, so the compiler also must read it only once.
template <typename Number>
Number read_once(const Number& word) noexcept {
  return __atomic_load_n(&word, __ATOMIC_RELAXED);
}

}  // namespace

std::optional<table_view> table_view::of(const sync::timeline_page& page,
                                         const std::byte* table,
                                         std::size_t bytes) noexcept {
  if (bytes < sizeof(table_head)) {
    return std::nullopt;
  }
  table_view result;
  result.page_ = &page;
  result.head_ = reinterpret_cast<const table_head*>(table);
  result.slots_ = read_once(result.head_->slots);
  result.slot_bytes_ = read_once(result.head_->slot_bytes);
  result.slot_stride_ = read_once(result.head_->slot_stride);
  result.first_item_ = read_once(result.head_->first_item);
  result.segment_ = read_once(result.head_->segment);
  result.last_of_previous_ = read_once(result.head_->last_of_previous);
  if (read_once(result.head_->magic) != table_magic ||
      read_once(result.head_->version) != table_version || result.slots_ == 0 ||
      result.slots_ > max_slots || result.slot_bytes_ == 0 ||
      result.slot_stride_ < result.slot_bytes_ ||
      result.slot_stride_ > std::numeric_limits<std::uint64_t>::max() / max_slots ||
      result.first_item_ == 0 || result.first_item_ > sync::max_value ||
      result.last_of_previous_ >= result.first_item_ ||
      page_bytes(result.slots_) > bytes + sync::timeline_page_bytes) {
    return std::nullopt;
  }
  result.rows_ = reinterpret_cast<const row*>(table + rows_offset);
  result.order_ =
      reinterpret_cast<const std::atomic<std::uint32_t>*>(table + order_offset(result.slots_));
  result.given_ =
      reinterpret_cast<const std::atomic<std::uint32_t>*>(table + given_offset(result.slots_));
  return result;
}

std::optional<checked_table> table_view::within(std::uint64_t segment,
                                                std::uint64_t segment_bytes) const noexcept {
  const bool fits = segment == segment_ && slot_stride_ <= segment_bytes / slots_;
  return fits ? std::optional(checked_table(*this)) : std::nullopt;
}

std::optional<std::uint32_t> table_view::given_slot(std::uint32_t entry,
                                                    std::uint64_t count) const noexcept {
  const std::uint32_t slot =
      given_[std::size_t{entry} * slots_ + count % slots_].load(std::memory_order_acquire);
  return slot < slots_ ? std::optional(slot) : std::nullopt;
}

std::uint64_t table_view::last_good() const noexcept {
  const std::uint64_t last = std::min(timeline(published_timeline).read().value().value_or(0),
                                      timeline(announced_timeline).read().value().value_or(0));
  return last < first_item_ ? last_of_previous() : last;
}

std::optional<std::uint32_t> table_view::slot_of(std::uint64_t item) const noexcept {
  const std::uint32_t slot = order_[item % order_size(slots_)].load(std::memory_order_seq_cst);
  return slot < slots_ ? std::optional(slot) : std::nullopt;
}

std::uint32_t table_view::copy_metadata(std::uint32_t slot,
                                        std::span<std::byte> target) const noexcept {
  const row& from = rows_[slot];
  const auto bytes = static_cast<std::uint32_t>(std::min<std::size_t>(
      {from.metadata_bytes.load(std::memory_order_relaxed), max_metadata_bytes, target.size()}));
  std::copy_n(from.metadata.begin(), bytes, target.begin());
  return bytes;
}

std::optional<std::uint32_t> table_view::entry_of(std::uint64_t id) const noexcept {
  for (std::uint32_t i = 0; i != max_consumers; ++i) {
    if (head_->consumers[i].id.load(std::memory_order_acquire) == id) {
      return i;
    }
  }
  return std::nullopt;
}

std::optional<std::uint64_t> table_view::start_of(std::uint64_t id) const noexcept {
  const auto entry = entry_of(id);
  const std::uint64_t start =
      entry ? head_->consumers[*entry].start.load(std::memory_order_acquire) : 0;
  return start == 0 ? std::nullopt : std::optional(start);
}

}  // namespace gpushm::channel
