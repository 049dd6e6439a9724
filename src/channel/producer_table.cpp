// SPDX-License-Identifier: Apache-2.0
#include "channel/producer_table.hpp"

#include <algorithm>
#include <utility>

namespace gpushm::channel {

namespace {

table_head& head_in(std::byte* table) {
  return *reinterpret_cast<table_head*>(table);
}

/// What a dead producer's word says in the end.
std::uint64_t last_of(const table_view& of, std::uint32_t word) {
  return of.word(word).read().value().value_or(0);
}

/// Consumers that hold the newest item, one after the other.
std::uint32_t held_by(const std::vector<member>& all) {
  std::uint32_t result = 0;
  for (const member& each : all) {
    result += each.held;
  }
  return result;
}

}  // namespace

producer_table::producer_table(sync::signal_page& page,
                               std::byte* table,
                               const shape& of,
                               std::uint64_t first_item)
    : page_(page),
      head_(head_in(table)),
      rows_(reinterpret_cast<row*>(table + rows_offset), of.slots),
      order_(reinterpret_cast<std::atomic<std::uint32_t>*>(table + order_offset(of.slots)),
             order_size(of.slots)),
      contents_(of.slots),
      next_(first_item) {
  head_.version = table_version;
  head_.slots = of.slots;
  head_.slot_bytes = of.slot_bytes;
  head_.slot_stride = of.slot_stride;
  head_.first_item = first_item;
  head_.segment = of.segment;
  head_.magic = table_magic;
  for (const std::uint32_t word : {announced_word, published_word}) {
    sync::timeline_writer(page_, word).reset(first_item - 1);
  }
  sync::timeline_writer(page_, members_word).reset(0);
}

producer_table::producer_table(sync::signal_page& page, std::byte* table, const shape& of)
    : producer_table(page, table, of, 1) {}

producer_table::producer_table(sync::signal_page& page,
                               std::byte* table,
                               const shape& of,
                               const table_view& dead)
    : producer_table(page, table, of, last_of(dead, announced_word) + 1) {
  const std::uint64_t last_good = last_of(dead, published_word);
  for (std::uint32_t slot = 0; slot != of.slots; ++slot) {
    const std::uint64_t item = dead.item_in(slot);
    contents_[slot] = {item <= last_good ? item : 0, last_good};
    if (item == next_) {
      doubt_ = slot;
    }
    rows_[slot].item.store(contents_[slot].item, std::memory_order_seq_cst);
  }
}

/// Items that consumers of the newest hold now.
producer_table::held_items producer_table::held_now() const noexcept {
  held_items result;
  for (const member& each : members_) {
    for (std::uint32_t i = 0; i != each.held; ++i) {
      const std::uint64_t item =
          each.word(first_held_word + i).word().load(std::memory_order_seq_cst);
      if (item != 0 && sync::kind_of(item) == sync::word_kind::value) {
        result.items[result.count++] = item;
      }
    }
  }
  return result;
}

bool producer_table::is_named(std::uint32_t slot, const held_items& held) const noexcept {
  const auto is_known = [&](std::uint64_t item) {
    return std::any_of(
        contents_.begin(), contents_.end(), [&](const content& each) { return each.item == item; });
  };
  const auto end = held.items.begin() + static_cast<std::ptrdiff_t>(held.count);
  return std::any_of(held.items.begin(), end, [&](std::uint64_t item) {
    return item == contents_[slot].item || (doubt_ == slot && !is_known(item));
  });
}

std::optional<producer_table::choice> producer_table::choose() const noexcept {
  const held_items held = held_now();
  std::optional<std::uint32_t> best;
  for (std::uint32_t slot = 0; slot != contents_.size(); ++slot) {
    if ((!best || contents_[slot].item < contents_[*best].item) && !is_named(slot, held)) {
      best = slot;
    }
  }
  return best ? std::optional(choice{*best, next_, contents_[*best].after}) : std::nullopt;
}

bool producer_table::claim(const choice& what) noexcept {
  std::atomic<std::uint64_t>& item = rows_[what.slot].item;
  item.store(what.number, std::memory_order_seq_cst);
  if (is_named(what.slot, held_now())) {
    item.store(contents_[what.slot].item, std::memory_order_seq_cst);
    return false;
  }
  contents_[what.slot].item = what.number;
  if (doubt_ == what.slot) {
    doubt_.reset();
  }
  return true;
}

void producer_table::abandon(const choice& what) noexcept {
  rows_[what.slot].item.store(0, std::memory_order_seq_cst);
  contents_[what.slot] = {0, what.after};
}

void producer_table::announce(const choice& what, std::span<const std::byte> metadata) noexcept {
  row& to = rows_[what.slot];
  std::copy(metadata.begin(), metadata.end(), to.metadata.begin());
  to.metadata_bytes.store(static_cast<std::uint32_t>(metadata.size()), std::memory_order_relaxed);
  order_[what.number % order_.size()].store(what.slot, std::memory_order_seq_cst);
  contents_[what.slot].after = what.number;
  next_ = what.number + 1;
  static_cast<void>(sync::timeline_writer(page_, announced_word).signal(what.number));
}

void producer_table::close() noexcept {
  head_.closed.store(1, std::memory_order_release);
}

// ---- members ----

bool producer_table::has_room(const member& for_one) const noexcept {
  const bool needs_more = for_one.held != 0 || held_by(members_) != 0;
  return members_.size() < max_consumers && for_one.held <= max_held &&
         (!needs_more || contents_.size() >= 2 + held_by(members_) + for_one.held);
}

void producer_table::add(member added) {
  const std::uint64_t newest = announced();
  const auto slot = std::find_if(
      contents_.begin(), contents_.end(), [&](const content& each) { return each.item == newest; });
  // It may be in none: nothing is announced yet, or its slot is being written (one slot only).
  const bool has_newest = newest >= head_.first_item && slot != contents_.end();
  added.start = has_newest ? newest : newest + 1;
  write_member(added.id, added.start);
  members_.push_back(added);
  static_cast<void>(sync::timeline_writer(page_, members_word)
                        .signal(sync::timeline_reader(page_, members_word).read().word + 1));
}

void producer_table::write_member(std::uint64_t id, std::uint64_t start) noexcept {
  // Its own entry, or one of a consumer that is not a member any more.
  const auto is_free = [&](const member_entry& each) {
    const std::uint64_t of = each.id.load(std::memory_order_relaxed);
    return std::none_of(
        members_.begin(), members_.end(), [&](const member& known) { return known.id == of; });
  };
  auto at = std::find_if(head_.members.begin(), head_.members.end(), [&](const auto& each) {
    return each.id.load(std::memory_order_relaxed) == id;
  });
  if (at == head_.members.end()) {
    at = std::find_if(head_.members.begin(), head_.members.end(), is_free);
  }
  if (at == head_.members.end()) {
    return;  // all are members: the one that is refused finds nothing, and times out
  }
  at->start.store(0, std::memory_order_release);
  at->id.store(id, std::memory_order_release);
  at->start.store(start, std::memory_order_release);
}

void producer_table::refuse(std::uint64_t id, std::uint64_t why) noexcept {
  write_member(id, why);
  static_cast<void>(sync::timeline_writer(page_, members_word)
                        .signal(sync::timeline_reader(page_, members_word).read().word + 1));
}

void producer_table::drop(std::uint64_t id) noexcept {
  std::erase_if(members_, [&](const member& each) { return each.id == id; });
}

bool producer_table::is_plausible(const member& of) const noexcept {
  // Both grow: `published` first.
  const std::uint64_t published =
      sync::timeline_reader(page_, published_word).read().value().value_or(0);
  const std::uint64_t released = of.word(released_word).word().load(std::memory_order_acquire);
  const std::uint64_t taken = of.word(taken_word).word().load(std::memory_order_acquire);
  if (sync::is_terminal(released) || sync::is_terminal(taken)) {
    return true;  // they end one after the other
  }
  return released <= announced() && taken <= announced() &&
         std::max(released, of.start - 1) + contents_.size() >= published;
}

}  // namespace gpushm::channel
