// SPDX-License-Identifier: Apache-2.0
#include "channel/producer_table.hpp"

#include <algorithm>
#include <utility>

namespace gpushm::channel {

namespace {

table_head& head_in(std::byte* table) {
  return *reinterpret_cast<table_head*>(table);
}

/// Consumers that hold the newest item, one after the other.
std::uint32_t held_by(const std::vector<consumer_view>& views) {
  std::uint32_t result = 0;
  for (const consumer_view& each : views) {
    result += each.held;
  }
  return result;
}

}  // namespace

producer_table::producer_table(sync::timeline_page& page,
                               std::byte* table,
                               const shape& shape,
                               std::uint64_t first_item,
                               std::uint64_t last_of_previous)
    : page_(page),
      head_(head_in(table)),
      rows_(reinterpret_cast<row*>(table + rows_offset), shape.slots),
      order_(reinterpret_cast<std::atomic<std::uint32_t>*>(table + order_offset(shape.slots)),
             order_size(shape.slots)),
      given_(reinterpret_cast<std::atomic<std::uint32_t>*>(table + given_offset(shape.slots)),
             std::size_t{max_consumers} * shape.slots),
      contents_(shape.slots),
      next_(first_item) {
  head_.version = table_version;
  head_.slots = shape.slots;
  head_.slot_bytes = shape.slot_bytes;
  head_.slot_stride = shape.slot_stride;
  head_.first_item = first_item;
  head_.segment = shape.segment;
  head_.last_of_previous = last_of_previous;
  head_.magic = table_magic;
  for (const std::uint32_t timeline : {announced_timeline, published_timeline}) {
    sync::timeline_writer(page_, timeline).reset(first_item - 1);
  }
  for (std::uint32_t timeline = consumers_timeline; timeline != producer_timelines; ++timeline) {
    sync::timeline_writer(page_, timeline).reset(0);
  }
}

producer_table::producer_table(sync::timeline_page& page, std::byte* table, const shape& shape)
    : producer_table(page, table, shape, 1, 0) {}

producer_table::producer_table(sync::timeline_page& page,
                               std::byte* table,
                               const shape& shape,
                               const table_view& previous)
    : producer_table(page, table, shape, previous, last_of(previous)) {}

/// The last items of the previous producer by its timelines, which are read once.
producer_table::last_items producer_table::last_of(const table_view& previous) noexcept {
  const std::uint64_t announced =
      previous.timeline(announced_timeline).read().value().value_or(previous.first_item() - 1);
  return {announced, std::min(previous.last_good(), announced)};
}

producer_table::producer_table(sync::timeline_page& page,
                               std::byte* table,
                               const shape& shape,
                               const table_view& previous,
                               const last_items& last)
    : producer_table(page,
                     table,
                     shape,
                     last.announced + 1,
                     shape.segment == previous.segment() ? last.good : 0) {
  if (shape.segment != previous.segment() || shape.slots != previous.slots()) {
    return;
  }
  read_contents(previous);
  for (std::size_t slot = 0; slot != contents_.size(); ++slot) {
    rows_[slot].before.store(contents_[slot].after, std::memory_order_seq_cst);
    rows_[slot].item.store(contents_[slot].item, std::memory_order_seq_cst);
  }
}

/// Finds the good item of the previous producer that each slot has, or had: consumers may use it,
/// and no later one.
void producer_table::read_contents(const table_view& previous) {
  const std::uint64_t good = last_of_previous();
  // The order has the last items. The next item may have overwritten the oldest entry.
  const std::uint64_t unknown = next_ - std::min<std::uint64_t>(next_, order_.size());
  const std::uint64_t older =
      unknown < previous.first_item() ? previous.last_of_previous() : unknown;
  std::vector<std::uint64_t> last(contents_.size(), std::min(good, older));
  for (std::uint64_t item = std::max(previous.first_item(), unknown + 1); item <= good; ++item) {
    if (const auto slot = previous.slot_of(item)) {
      last[*slot] = item;
    }
  }
  for (std::uint32_t slot = 0; slot != contents_.size(); ++slot) {
    const std::uint64_t item = previous.item_in(slot);
    const std::uint64_t before = previous.before_in(slot);
    content& content = contents_[slot];
    if (item != 0 && item <= good) {
      content.item = content.after = item;
    } else if (before <= good) {
      content.after = before;
      // It may have died before it read the `held` timelines again: they may name this item.
      content.item = item == acquired_row ? before : 0;
    } else {
      content.after = last[slot];
    }
  }
}

/// Items that `latest` consumers hold now.
producer_table::held_items producer_table::held_now() const noexcept {
  held_items result;
  for (const consumer_view& each : consumers_) {
    for (std::uint32_t i = 0; i != each.held; ++i) {
      const std::uint64_t item =
          each.timeline(first_held_timeline + i).word().load(std::memory_order_seq_cst);
      if (item != 0 && sync::kind_of(item) == sync::word_kind::value) {
        result.items[result.count++] = item;
      }
    }
  }
  return result;
}

bool producer_table::is_named(std::uint32_t slot, const held_items& held) const noexcept {
  const auto end = held.items.begin() + static_cast<std::ptrdiff_t>(held.count);
  return std::find(held.items.begin(), end, contents_[slot].item) != end;
}

std::optional<producer_table::choice> producer_table::choose() const noexcept {
  const held_items held = held_now();
  // Without work that is shared, there is always an older one.
  const bool needs_newest = held_by(consumers_) != 0;
  std::optional<std::uint32_t> best;
  for (std::uint32_t slot = 0; slot != contents_.size(); ++slot) {
    if (contents_[slot].is_acquired) {
      continue;
    }
    if (needs_newest && contents_[slot].item == announced() && announced() >= head_.first_item) {
      continue;
    }
    if ((!best || contents_[slot].after < contents_[*best].after) && !is_named(slot, held) &&
        !is_used(slot)) {
      best = slot;
    }
  }
  return best ? std::optional(choice{*best, contents_[*best].after}) : std::nullopt;
}

bool producer_table::acquire(const choice& choice) noexcept {
  std::atomic<std::uint64_t>& item = rows_[choice.slot].item;
  rows_[choice.slot].before.store(contents_[choice.slot].after, std::memory_order_seq_cst);
  item.store(acquired_row, std::memory_order_seq_cst);
  if (is_named(choice.slot, held_now())) {
    item.store(contents_[choice.slot].item, std::memory_order_seq_cst);
    return false;
  }
  contents_[choice.slot] = {0, true, contents_[choice.slot].after, 0, 0};
  return true;
}

void producer_table::abandon(const choice& choice) noexcept {
  rows_[choice.slot].item.store(0, std::memory_order_seq_cst);
  contents_[choice.slot].is_acquired = false;
}

std::uint64_t producer_table::prepare(const choice& choice,
                                      std::span<const std::byte> metadata) noexcept {
  row& to = rows_[choice.slot];
  std::copy(metadata.begin(), metadata.end(), to.metadata.begin());
  to.metadata_bytes.store(static_cast<std::uint32_t>(metadata.size()), std::memory_order_relaxed);
  to.item.store(next_, std::memory_order_seq_cst);
  order_[next_ % order_.size()].store(choice.slot, std::memory_order_seq_cst);
  return next_;
}

void producer_table::withdraw(const choice& choice) noexcept {
  rows_[choice.slot].item.store(acquired_row, std::memory_order_seq_cst);
}

void producer_table::announce(const choice& choice) noexcept {
  contents_[choice.slot] = {next_, false, next_, 0, 0};
  static_cast<void>(sync::timeline_writer(page_, announced_timeline).signal(next_));
  ++next_;
  give(choice.slot);
}

// ---- work that is shared ----

std::uint64_t producer_table::unreleased(const consumer_view& consumer) noexcept {
  const std::uint64_t released = consumer.timeline(released_timeline).read().value().value_or(0);
  return consumer.given - std::min(consumer.given, std::max(released, consumer.start - 1));
}

bool producer_table::is_work_full() const noexcept {
  bool is_shared = false;
  for (const consumer_view& each : consumers_) {
    if (each.mode == consumer_mode::share) {
      if (unreleased(each) < each.depth) {
        return false;
      }
      is_shared = true;
    }
  }
  return is_shared;
}

std::optional<producer_table::obstacle> producer_table::next_obstacle(
    const std::optional<choice>& chosen, bool on_stream) const noexcept {
  if (!chosen || is_work_full()) {
    for (const consumer_view& each : consumers_) {
      if (each.mode == consumer_mode::share && unreleased(each) != 0) {
        const std::uint64_t released = each.timeline(released_timeline).read().value().value_or(0);
        return obstacle{&each, released_timeline, released + 1, true};
      }
    }
    if (!chosen) {  // `latest` consumers briefly hold all slots
      return obstacle{nullptr, announced_timeline, sync::max_value, true};
    }
  }
  if (const consumer_view* const behind = find_behind(taken_timeline, chosen->after)) {
    return obstacle{behind, taken_timeline, chosen->after};
  }
  if (!on_stream) {
    if (const consumer_view* const behind = find_behind(released_timeline, chosen->after)) {
      return obstacle{behind, released_timeline, chosen->after};
    }
  }
  return std::nullopt;
}

const consumer_view* producer_table::find_behind(std::uint32_t timeline,
                                                 std::uint64_t value) const noexcept {
  const auto at =
      std::find_if(consumers_.begin(), consumers_.end(), [&](const consumer_view& each) {
        return each.mode == consumer_mode::block &&
               !sync::releases(each.timeline(timeline).word().load(std::memory_order_seq_cst),
                               value);
      });
  return at == consumers_.end() ? nullptr : &*at;
}

/// Whether the consumer that was given the item in this slot may still use it.
bool producer_table::is_used(std::uint32_t slot) const noexcept {
  const content& content = contents_[slot];
  if (content.owner == 0) {
    return false;
  }
  const auto owner =
      std::find_if(consumers_.begin(), consumers_.end(), [&](const consumer_view& each) {
        return each.id == content.owner;
      });
  if (owner == consumers_.end()) {
    return false;
  }
  // If its timelines have ended meanwhile, its unreleased items are given to another consumer
  // first.
  return owner->timeline(released_timeline).read().value().value_or(0) < content.count;
}

/// Gives an announced item to the consumer that has most room for it, in turn if several have.
void producer_table::give(std::uint32_t slot) noexcept {
  content& content = contents_[slot];
  content.owner = 0;
  consumer_view* best = nullptr;
  std::int64_t most = 0;
  for (std::size_t i = 0; i != consumers_.size(); ++i) {
    consumer_view& each = consumers_[(turn_ + i) % consumers_.size()];
    if (each.mode != consumer_mode::share) {
      continue;
    }
    const auto room =
        static_cast<std::int64_t>(each.depth) - static_cast<std::int64_t>(unreleased(each));
    if (best == nullptr || room > most) {
      best = &each;
      most = room;
    }
  }
  if (best == nullptr) {
    return;
  }
  turn_ = static_cast<std::uint64_t>(best - consumers_.data()) + 1;
  content.owner = best->id;
  content.count = ++best->given;
  given_[best->entry * contents_.size() + content.count % contents_.size()].store(
      slot, std::memory_order_release);
  static_cast<void>(
      sync::timeline_writer(page_, first_given_timeline + best->entry).signal(content.count));
}

void producer_table::close() noexcept {
  head_.closed.store(1, std::memory_order_release);
}

// ---- consumers ----

bool producer_table::has_room(const consumer_view& for_one) const noexcept {
  const bool needs_more = for_one.held != 0 || held_by(consumers_) != 0;
  return consumers_.size() < max_consumers && for_one.held <= max_held &&
         (!needs_more || contents_.size() >= 2 + held_by(consumers_) + for_one.held);
}

void producer_table::add(consumer_view added) {
  const std::uint64_t newest = announced();
  const auto slot = std::find_if(
      contents_.begin(), contents_.end(), [&](const content& each) { return each.item == newest; });
  // It may be in none: nothing is announced yet, or its slot is being written (one slot only).
  const bool has_newest = newest >= head_.first_item && slot != contents_.end();
  const auto entry = entry_for(added.id);
  if (!entry) {
    return;
  }
  added.entry = *entry;
  added.start = has_newest ? newest : newest + 1;
  if (added.mode == consumer_mode::share) {
    added.given = sync::timeline_reader(page_, first_given_timeline + added.entry).read().word;
    added.start = added.given + 1;
  }
  write_consumer(added.entry, added.id, added.start);
  consumers_.push_back(added);
  static_cast<void>(sync::timeline_writer(page_, consumers_timeline)
                        .signal(sync::timeline_reader(page_, consumers_timeline).read().word + 1));
}

std::optional<std::uint32_t> producer_table::entry_for(std::uint64_t id) const noexcept {
  // Its own entry, or that of a consumer that has left.
  const auto is_free = [&](const consumer_entry& each) {
    const std::uint64_t of = each.id.load(std::memory_order_relaxed);
    return std::none_of(consumers_.begin(), consumers_.end(), [&](const consumer_view& known) {
      return known.id == of;
    });
  };
  auto at = std::find_if(head_.consumers.begin(), head_.consumers.end(), [&](const auto& each) {
    return each.id.load(std::memory_order_relaxed) == id;
  });
  if (at == head_.consumers.end()) {
    at = std::find_if(head_.consumers.begin(), head_.consumers.end(), is_free);
  }
  return at == head_.consumers.end()
             ? std::nullopt
             : std::optional(static_cast<std::uint32_t>(at - head_.consumers.begin()));
}

void producer_table::write_consumer(std::uint32_t entry,
                                    std::uint64_t id,
                                    std::uint64_t start) noexcept {
  consumer_entry& at = head_.consumers[entry];
  at.start.store(0, std::memory_order_release);
  at.id.store(id, std::memory_order_release);
  at.start.store(start, std::memory_order_release);
}

void producer_table::refuse(std::uint64_t id, std::uint64_t why) noexcept {
  // If all entries are in use, the refused consumer finds none, and times out.
  if (const auto entry = entry_for(id)) {
    write_consumer(*entry, id, why);
  }
  static_cast<void>(sync::timeline_writer(page_, consumers_timeline)
                        .signal(sync::timeline_reader(page_, consumers_timeline).read().word + 1));
}

void producer_table::drop(std::uint64_t id) noexcept {
  const auto at = std::find_if(consumers_.begin(),
                               consumers_.end(),
                               [&](const consumer_view& each) { return each.id == id; });
  if (at == consumers_.end()) {
    return;
  }
  const consumer_view gone = *at;
  consumers_.erase(at);
  if (gone.mode != consumer_mode::share) {
    return;
  }
  const std::uint64_t released =
      is_plausible(gone) ? gone.timeline(released_timeline).read().value().value_or(0) : 0;
  for (std::uint32_t slot = 0; slot != contents_.size(); ++slot) {
    if (contents_[slot].owner != id) {
      continue;
    }
    contents_[slot].owner = 0;
    if (contents_[slot].count > released) {
      give(slot);
    }
  }
}

bool producer_table::is_plausible(const consumer_view& view) const noexcept {
  // Both grow: `published` first.
  const std::uint64_t published =
      sync::timeline_reader(page_, published_timeline).read().value().value_or(0);
  const std::uint64_t released =
      view.timeline(released_timeline).word().load(std::memory_order_acquire);
  const std::uint64_t taken = view.timeline(taken_timeline).word().load(std::memory_order_acquire);
  if (sync::is_terminal(released) || sync::is_terminal(taken)) {
    return true;  // they end one after the other
  }
  if (view.mode == consumer_mode::share) {
    return released <= view.given;
  }
  return released <= announced() && taken <= announced() &&
         std::max(released, view.start - 1) + contents_.size() >= published;
}

}  // namespace gpushm::channel
