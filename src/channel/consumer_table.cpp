// SPDX-License-Identifier: Apache-2.0
#include "channel/consumer_table.hpp"

#include <algorithm>

namespace gpushm::channel {

namespace {

bool has_ended(std::uint64_t word) noexcept {
  return sync::kind_of(word) != sync::word_kind::value;
}

}  // namespace

void consumer_table::attach(const checked_table& table,
                            std::uint64_t start,
                            std::uint32_t entry,
                            std::uint64_t page) noexcept {
  const bool joins = !producer_;
  producer_ = table;
  next_ = start;
  entry_ = entry;
  if (joins && mode_ != consumer_mode::latest) {
    // The producer's stream waits for the release of items that this consumer does not get. A
    // consumer that continues with the next producer may still use items of the previous one.
    for (const std::uint32_t index : {released_timeline, taken_timeline}) {
      sync::timeline_writer writer(page_, first_ + index);
      static_cast<void>(writer.signal(start - 1));  // no effect if it has that value
    }
  }
  static_cast<void>(sync::timeline_writer(page_, first_ + attached_timeline).signal(page));
}

consumer_table::outcome consumer_table::take(item& into) noexcept {
  switch (mode_) {
    case consumer_mode::block:
      return take_next(into);
    case consumer_mode::latest:
      return take_newest(into);
    case consumer_mode::share:
      break;
  }
  return take_given(into);
}

/// Whether the producer has stored `next_` in this timeline: `taken`, or why not. If the producer
/// has ended, both of its timelines have.
consumer_table::outcome consumer_table::find_next(std::uint32_t timeline) const noexcept {
  const sync::reading there = producer_->timeline(timeline).read();
  if (there.kind() == sync::word_kind::invalid) {
    return outcome::invalid;
  }
  if (!has_ended(there.word)) {
    return there.word < next_ ? outcome::not_yet : outcome::taken;
  }
  const sync::reading published = producer_->timeline(published_timeline).read();
  if (!has_ended(published.word)) {
    return outcome::ending;
  }
  if (!there.value() || !published.value()) {
    return outcome::invalid;
  }
  // A stream may have published an item whose announcement came too late.
  const std::uint64_t last = timeline == announced_timeline
                                 ? std::min(*published.value(), *there.value())
                                 : *there.value();
  return next_ > last ? outcome::ended : outcome::taken;
}

void consumer_table::describe(std::uint64_t number, std::uint32_t slot, item& into) const noexcept {
  into.number = number;
  into.slot = slot;
  into.offset = producer_->offset_of(slot);
  into.bytes = producer_->slot_bytes();
  into.metadata_bytes = producer_->copy_metadata(slot, into.metadata);
}

consumer_table::outcome consumer_table::take_next(item& into) noexcept {
  if (const outcome found = find_next(announced_timeline); found != outcome::taken) {
    return found;
  }
  const auto slot = producer_->slot_of(next_);
  if (!slot || producer_->item_in(*slot) != next_) {
    return outcome::invalid;
  }
  describe(next_, *slot, into);
  into.release = next_;
  static_cast<void>(sync::timeline_writer(page_, first_ + taken_timeline).signal(next_));
  ++next_;
  return outcome::taken;
}

consumer_table::outcome consumer_table::take_given(item& into) noexcept {
  // A consumer is never given more than it has not released: one item for each slot.
  for (std::uint32_t looked_at = 0; looked_at <= producer_->slots(); ++looked_at) {
    if (const outcome found = find_next(next_timeline()); found != outcome::taken) {
      return found;
    }
    const auto slot = producer_->given_slot(entry_, next_);
    const std::uint64_t number = slot ? producer_->item_in(*slot) : 0;
    if (number == 0 || number > sync::max_value) {
      return outcome::invalid;
    }
    const sync::reading published = producer_->timeline(published_timeline).read();
    describe(number, *slot, into);
    into.release = next_++;
    if (!has_ended(published.word) || number <= published.value().value_or(0)) {
      return outcome::taken;
    }
    // The producer has died before this one was complete.
  }
  return outcome::invalid;
}

/// The number of the newest item: `taken`, or why there is none. After a producer has closed the
/// channel, its slots are not written again: the next producer has others. After a producer that
/// has died nothing is taken, because the next one may have read the `held` words before.
consumer_table::outcome consumer_table::find_newest(std::uint64_t& newest) const noexcept {
  newest = producer_->timeline(announced_timeline).word().load(std::memory_order_seq_cst);
  if (has_ended(newest)) {
    // Read again: a terminal word stays one, and has its last value.
    const sync::reading announced = producer_->timeline(announced_timeline).read();
    if (!sync::is_terminal(newest) || !announced.value()) {
      return outcome::invalid;
    }
    if (!producer_->closed()) {
      return outcome::ended;
    }
    const sync::reading published = producer_->timeline(published_timeline).read();
    if (!has_ended(published.word)) {
      return outcome::ending;
    }
    newest = std::min(published.value().value_or(0), *announced.value());
    if (newest < next_) {
      return outcome::ended;
    }
  }
  return newest < next_ ? outcome::not_yet : outcome::taken;
}

consumer_table::outcome consumer_table::take_newest(item& into) noexcept {
  const sync::timeline_reader announced = producer_->timeline(announced_timeline);
  // A timeline is free when the stream that released its item has stored 0.
  std::uint32_t index = 0;
  while (index != held_ && held(index).load(std::memory_order_acquire) != 0) {
    ++index;
  }
  // The producer may be faster each time: the caller looks at its deadline meanwhile.
  for (std::uint32_t tries = 0; tries != producer_->slots(); ++tries) {
    const bool is_last = has_ended(announced.word().load(std::memory_order_seq_cst));
    std::uint64_t newest = 0;
    if (const outcome found = find_newest(newest); found != outcome::taken) {
      return found;
    }
    if (index == held_) {
      return outcome::full;
    }
    const auto slot = producer_->slot_of(newest);
    if (!slot) {
      return outcome::invalid;
    }
    held(index).store(newest, std::memory_order_seq_cst);
    const bool is_there = producer_->item_in(*slot) == newest;
    const std::uint64_t now = announced.word().load(std::memory_order_seq_cst);
    if (!is_there || (has_ended(now) && !producer_->closed())) {
      held(index).store(0, std::memory_order_seq_cst);
      // The newest item stays in its slot until there is a newer one.
      if (!is_there && (now == newest || is_last)) {
        return outcome::invalid;
      }
      continue;
    }
    describe(newest, *slot, into);
    into.held_timeline = first_ + first_held_timeline + index;
    next_ = newest + 1;
    return outcome::taken;
  }
  return outcome::not_yet;
}

}  // namespace gpushm::channel
