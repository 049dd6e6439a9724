// SPDX-License-Identifier: Apache-2.0
#include "protocol/wire/state_table.hpp"

#include <linux/futex.h>

#include <chrono>

namespace gpushm::wire {

namespace {

std::uint32_t owner_of(const state_table_header& header) noexcept {
  return std::atomic_ref<const std::uint32_t>(header.owner_futex).load(std::memory_order_acquire);
}

bool is_alive(std::uint32_t owner) noexcept {
  return (owner & FUTEX_OWNER_DIED) == 0 && (owner & FUTEX_TID_MASK) != 0;
}

}  // namespace

state_table_view::state_table_view(const void* mapping,
                                   std::size_t size_bytes,
                                   const gpushm::epoch& epoch) noexcept {
  if (size_bytes < state_table_words_offset) {
    return;
  }
  const auto* header = static_cast<const state_table_header*>(mapping);
  if (header->magic != state_table_magic || header->version != state_table_version ||
      header->epoch != epoch || state_table_bytes(header->slots) > size_bytes) {
    return;
  }
  header_ = header;
  slots_ = header->slots;
  words_ = reinterpret_cast<const slot_word*>(static_cast<const std::byte*>(mapping) +
                                              state_table_words_offset);
}

bool state_table_view::has_writer() const noexcept {
  return header_ != nullptr && is_alive(owner_of(*header_));
}

/// Returns false if the broker is alive, or has ended on purpose.
bool state_table_view::may_have_successor() const noexcept {
  return header_ != nullptr && header_->resumable != 0 &&
         (owner_of(*header_) & FUTEX_OWNER_DIED) != 0;
}

bool state_table_view::broker_alive() const noexcept {
  if (header_ == nullptr) {
    return false;
  }
  const std::uint32_t owner = owner_of(*header_);
  if (is_alive(owner)) {
    if (paused_since_.load(std::memory_order_relaxed) != 0) {
      paused_since_.store(0, std::memory_order_relaxed);
    }
    return true;
  }
  if (header_->resumable == 0 || (owner & FUTEX_OWNER_DIED) == 0) {
    return false;  // without a successor, or ended on purpose
  }
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  std::int64_t since = 0;
  if (paused_since_.compare_exchange_strong(since, now.count(), std::memory_order_relaxed)) {
    return true;
  }
  return now - std::chrono::nanoseconds(since) < longest_pause;
}

// NOLINTNEXTLINE(bugprone-unhandled-self-assignment): it owns nothing
state_table_view& state_table_view::operator=(const state_table_view& other) noexcept {
  header_ = other.header_;
  words_ = other.words_;
  slots_ = other.slots_;
  paused_since_.store(other.paused_since_.load(std::memory_order_relaxed),
                      std::memory_order_relaxed);
  return *this;
}

segment_state state_table_view::state(std::uint32_t slot,
                                      gpushm::generation generation) const noexcept {
  if (slot >= slots_) {
    return segment_state::removed;
  }
  const bool is_paused = may_have_successor();  // first: another table may take its place
  const std::uint64_t word = words_[slot].load(std::memory_order_acquire);
  if (word >> 8U != generation) {
    return is_paused ? segment_state::live : segment_state::removed;
  }
  switch (static_cast<slot_state>(word & 0xFFU)) {
    case slot_state::live:
      return segment_state::live;
    case slot_state::exporter_gone:
      return segment_state::exporter_gone;
    case slot_state::device_lost:
      return segment_state::device_lost;
    case slot_state::free:
    case slot_state::removed:
      break;
  }
  return segment_state::removed;
}

bool state_table_view::exists(std::uint32_t slot, gpushm::generation generation) const noexcept {
  if (may_have_successor()) {
    return true;
  }
  const std::uint64_t word = slot < slots_ ? words_[slot].load(std::memory_order_acquire) : 0;
  return word >> 8U == generation && static_cast<slot_state>(word & 0xFFU) != slot_state::free;
}

}  // namespace gpushm::wire
