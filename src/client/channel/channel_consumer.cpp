// SPDX-License-Identifier: Apache-2.0
// The items that a consumer takes and releases. channel_joining.cpp has the rest.
#include "client/channel/channel_consumer.hpp"

#include <algorithm>
#include <utility>

#include "base/files/syscall.hpp"
#include "base/process/deadline.hpp"
#include "base/report/log.hpp"
#include "client/timeline/stream_turn.hpp"
#include "gpu/streams/stream_operations.hpp"
#include "sync/cpu_wait.hpp"

namespace gpushm::client_detail {

using channel::consumer_mode;
using channel::consumer_table;
using cuda::CUdeviceptr;
using cuda::CUstream;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using sync::wait_result;
using sync::word_kind;

// ---- the end ----

channel_consumer::~channel_consumer() {
  if (base::is_forked_child_of(forks_)) {
    leak(range_.page);
    leak(joined_lease_);
    leak(producer_lease_);
    leak(producer_page_);
    leak(timelines_);
    return;
  }
  close();
}

void channel_consumer::close() noexcept {
  if (base::is_forked_child_of(forks_)) {
    return;
  }
  stop_.request_stop();
  std::deque<std::shared_ptr<taken_item>> items;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_closed_, true)) {
      return;
    }
    items = std::move(held_);
    for (const auto& each : items) {
      each->is_held = false;
    }
  }
  for (const auto& each : items) {
    handle_table<taken_item>::of_process().remove(each->handle);
  }
  if (!range_.page || !joined_lease_) {
    return;  // it has never joined
  }
  // A call that takes an item ends soon; the last request to the broker has a deadline.
  const auto turn = turn_.take(base::deadline_after(std::chrono::hours(1)), {});
  if (!await_releases(base::deadline_after(close_limit), {})) {
    base::log(log_level::warning,
              "channel \"" + name_ +
                  "\": closed while a stream still has items to release; the producer waits until "
                  "this process ends (synchronize the stream before closing the consumer)");
    timelines_->pages().keep(range_.page);
    timelines_->pages().keep(producer_page_);
    leak(joined_lease_);
    return;
  }
  timelines_->pages().end(range_, timeline_count_, *joined_lease_);
}

bool channel_consumer::is_newest_held_by_stream() const {
  const std::lock_guard lock(mutex_);
  for (std::uint32_t i = channel::first_held_timeline; i != timeline_count_; ++i) {
    const std::uint32_t timeline = range_.first + i;
    if (range_.page->page().words[timeline].load(std::memory_order_acquire) != 0 &&
        std::none_of(held_.begin(), held_.end(), [&](const auto& each) {
          return each->item.held_timeline == timeline;
        })) {
      return true;
    }
  }
  return false;
}

bool channel_consumer::await_releases(time_point until, const std::stop_token& stop) const {
  std::uint64_t last = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!streams_release_) {
      return true;
    }
    last = released_->last_value();
  }
  if (options_.mode != consumer_mode::latest) {
    return sync::wait(own_timeline(channel::released_timeline).reader(), last, until, stop) ==
           wait_result::reached;
  }
  while (is_newest_held_by_stream()) {
    if (steady_clock::now() >= until || stop.stop_requested()) {
      return false;
    }
    base::pause_before_retry(milliseconds(0));
  }
  return true;
}

/// With the lock held.
void channel_consumer::forget_previous_slots() {
  const bool streams_may_read = streams_release_ && (options_.mode == consumer_mode::latest ||
                                                     (released_ && released_->is_pending()));
  if (!streams_may_read) {
    previous_slots_.clear();
  }
}

void channel_consumer::check_usable(std::string_view operation) const {
  check_not_forked(forks_, operation, name_);
}

void channel_consumer::check_open(std::string_view operation) const {
  if (is_closed_) {
    throw error(errc::invalid_argument,
                operation,
                name_,
                "the consumer is closed",
                "open another consumer");
  }
}

void channel_consumer::check_held(const taken_item& item, std::string_view operation) const {
  if (!item.is_held) {
    throw error(errc::invalid_argument,
                operation,
                name_,
                "item " + std::to_string(item.item.number) + " was released before",
                "release each item once");
  }
}

sync::timeline_writer channel_consumer::own_timeline(std::uint32_t index) const {
  return {range_.page->own_page(), range_.first + index};
}

CUdeviceptr channel_consumer::own_address(std::uint32_t timeline, CUstream stream) const {
  return range_.page->for_streams().address_for(stream, timeline, "release", name_);
}

// ---- taking items ----

/// Finds out whether a stream was given an item that was never completed. Call it also before the
/// timelines of the next producer are used.
void channel_consumer::note_last_producer() {
  const std::lock_guard lock(mutex_);
  if (!table_->is_attached()) {
    return;
  }
  const sync::reading published = table_->producer().timeline(channel::published_timeline).read();
  if (published.kind() != word_kind::value && published.value() < on_streams_) {
    lost_ = producer_pid();
    on_streams_ = 0;  // reported once
  }
}

/// Waits for the condition that `why` names. Returns false on timeout and at the end.
bool channel_consumer::wait_for_items(consumer_table::outcome why,
                                      time_point until,
                                      const std::stop_token& stop) {
  switch (why) {
    case consumer_table::outcome::taken:
      return true;
    case consumer_table::outcome::not_yet:
      return sync::wait(table_->producer().timeline(table_->next_timeline()),
                        table_->next_number(),
                        until,
                        stop) != wait_result::timed_out &&
             !stop.stop_requested();
    case consumer_table::outcome::ending:
      return sync::wait(table_->producer().timeline(channel::published_timeline),
                        sync::max_value,
                        until,
                        stop) != wait_result::timed_out &&
             !stop.stop_requested();
    case consumer_table::outcome::full:
      if (const std::lock_guard lock(mutex_); held_.size() >= options_.held) {
        throw error(errc::too_many_requests,
                    "next",
                    name_,
                    "this consumer holds " + std::to_string(held_.size()) + " items",
                    "release one first, or open the consumer with a larger number");
      }
      base::pause_before_retry(milliseconds(0));  // a stream releases one
      return steady_clock::now() < until && !stop.stop_requested();
    case consumer_table::outcome::ended:
      if (table_->producer().closed()) {
        ended_ = true;
        // The next producer does not wait for this consumer, because it has other slots.
        own_timeline(channel::taken_timeline).close(word_kind::ended);
        return false;
      }
      note_last_producer();
      return wait_for_next_producer(until, stop);
    case consumer_table::outcome::invalid:
      break;
  }
  throw invalid_producer("next");
}

std::int32_t channel_consumer::producer_pid() const {
  return producer_page_ ? producer_page_->lease().info().creator_pid : 0;
}

/// Waits for the next producer after this one has died. Returns false on timeout or after a stop
/// request. Throws peer_died if this consumer may wait no longer.
bool channel_consumer::wait_for_next_producer(time_point until, const std::stop_token& stop) {
  const auto seen = steady_clock::now();
  if (!died_at_) {
    died_at_ = seen;
    previous_pid_ = producer_pid();
  }
  const time_point resume_until =
      options_.resume == forever ? until : base::later(*died_at_, options_.resume);
  if (go_on({std::min(until, resume_until), until}, stop)) {
    died_at_.reset();
    return true;
  }
  if (stop.stop_requested() || (options_.resume != milliseconds(0) && until < resume_until)) {
    return false;
  }
  throw error(errc::peer_died,
              "next",
              name_,
              "the producer has died, and all its complete items were read",
              "call again when there is a new producer, or open the consumer with more time to "
              "resume",
              {.pid = previous_pid_});
}

std::optional<consumer_table::item> channel_consumer::take(time_point until,
                                                           const std::stop_token& stop) {
  if (pending_) {
    return std::exchange(pending_, std::nullopt);
  }
  table_item taken;
  for (bool is_last = false; !ended_;) {
    const auto outcome = table_->take(taken);
    if (outcome == consumer_table::outcome::taken) {
      return taken;
    }
    // If a hostile producer stores any values, waits end at once: it cannot prolong this call.
    if (is_last || !wait_for_items(outcome, until, stop)) {
      break;
    }
    is_last = steady_clock::now() >= until || stop.stop_requested();
  }
  return std::nullopt;
}

/// Returns false on timeout. Throws peer_died, and forgets the item, if it will never be complete.
bool channel_consumer::wait_until_complete(optional_stream stream,
                                           const table_item& taken,
                                           time_point until,
                                           const std::stop_token& stop) {
  const sync::timeline_reader published = table_->producer().timeline(channel::published_timeline);
  if (sync::try_wait(published, taken.number) == wait_result::reached) {
    return true;
  }
  if (stream) {
    auto counted = await_stream_turn(*stream,
                                     producer_page_,
                                     channel::published_timeline,
                                     taken.number,
                                     base::time_left(until),
                                     name_,
                                     stop);
    streams::enqueue_wait(*stream,
                          producer_page_->for_streams().address_for(
                              *stream, channel::published_timeline, "next", name_),
                          taken.number,
                          name_);
    counted.commit();
    return true;
  }
  const auto result = sync::wait(published, taken.number, until, stop);
  return result == wait_result::reached;
}

/// Gives the item to this consumer.
std::shared_ptr<taken_item> channel_consumer::hold(optional_stream stream,
                                                   const table_item& taken) {
  auto item = std::make_shared<taken_item>();
  item->consumer = shared_from_this();
  item->item = taken;
  item->on = stream;
  item->producer = producer_page_;
  const std::lock_guard lock(mutex_);
  if (is_closed_) {
    return nullptr;
  }
  item->slots = slots_;
  // These include items that a dead producer has announced and not completed.
  item->skipped =
      options_.mode == consumer_mode::share ? 0 : taken.number - std::min(taken.number, expected_);
  held_.push_back(item);
  try {
    item->handle = handle_table<taken_item>::of_process().add(item);
  } catch (...) {
    held_.pop_back();
    throw;
  }
  on_streams_ = stream ? std::max(on_streams_, taken.number) : on_streams_;
  expected_ = taken.number + 1;
  return item;
}

void channel_consumer::begin_next() {
  const std::lock_guard lock(mutex_);
  check_open("next");
  if (options_.mode != consumer_mode::latest && released_) {
    release_kept_back();
  }
}

std::shared_ptr<taken_item> channel_consumer::try_next(std::optional<watched_timeline>& missing) {
  check_usable("next");
  begin_next();
  const auto turn = turn_.take(steady_clock::now(), {});
  if (!turn || ended_) {
    return nullptr;
  }
  const auto watch = [&](std::uint32_t timeline, std::uint64_t value) {
    missing.emplace(watched_timeline{table_->producer().timeline(timeline), value, producer_page_});
  };
  if (!pending_) {
    table_item taken;
    switch (table_->take(taken)) {
      case consumer_table::outcome::taken:
        pending_ = taken;
        break;
      case consumer_table::outcome::not_yet:
        watch(table_->next_timeline(), table_->next_number());
        return nullptr;
      case consumer_table::outcome::ending:
        watch(channel::published_timeline, sync::max_value);
        return nullptr;
      default:
        return nullptr;
    }
  }
  const sync::timeline_reader published = table_->producer().timeline(channel::published_timeline);
  const std::uint64_t number = pending_->number;
  switch (sync::try_wait(published, number)) {
    case wait_result::reached: {
      auto result = hold({}, *pending_);
      pending_.reset();
      return result;
    }
    case wait_result::timed_out:
      watch(channel::published_timeline, number);
      return nullptr;
    default:
      return nullptr;
  }
}

std::shared_ptr<taken_item> channel_consumer::next(optional_stream stream,
                                                   milliseconds timeout,
                                                   const std::stop_token& stop) {
  check_usable("next");
  if (stream) {
    streams::check_not_captured(*stream, "next", name_);
  }
  begin_next();
  const auto until = base::deadline_after(timeout);
  const either_stop stops(stop, stop_.get_token());
  const auto turn = turn_.take(until, stops.token());
  if (!turn) {
    return nullptr;
  }
  for (;;) {
    const auto taken = take(until, stops.token());
    if (!taken) {
      return nullptr;
    }
    try {
      if (wait_until_complete(stream, *taken, until, stops.token())) {
        return hold(stream, *taken);
      }
    } catch (const error& why) {
      pending_ = *taken;
      if (why.code() == errc::cancelled) {
        return nullptr;
      }
      throw;
    } catch (...) {
      pending_ = *taken;
      throw;
    }
    const auto published = table_->producer().timeline(channel::published_timeline).read();
    if (published.kind() == word_kind::value) {
      pending_ = *taken;
      return nullptr;
    }
    // The producer died before the item was complete: release it, and look for the next one.
    if (options_.mode == consumer_mode::latest) {
      range_.page->own_page().words[taken->held_timeline].store(0, std::memory_order_seq_cst);
    }
    if (steady_clock::now() >= until || stops.token().stop_requested()) {
      return nullptr;
    }
  }
}

// ---- items ----

gpushm_item_info channel_consumer::info_of(const taken_item& item) const {
  check_usable("item");
  gpushm_item_info result{};
  result.data = static_cast<const std::byte*>(item.slots->region().data()) + item.item.offset;
  result.bytes = item.item.bytes;
  result.number = item.item.number;
  result.skipped = item.skipped;
  result.stream = item.on.value_or(nullptr);
  result.metadata = item.item.metadata.data();
  result.metadata_size = item.item.metadata_bytes;
  result.index = item.item.slot;
  result.on_stream = item.on.has_value();
  const sync::timeline_reader published(item.producer->page(), channel::published_timeline);
  result.is_complete =
      !result.on_stream || sync::try_wait(published, item.item.number) == wait_result::reached;
  return result;
}

gpushm_segment* channel_consumer::memory_of(const taken_item& item) const {
  check_usable("item");
  item.slots->take_handle();
  return item.slots.get();
}

void channel_consumer::wait_on(const taken_item& item, CUstream stream) const {
  check_usable("wait");
  streams::check_not_captured(stream, "wait", name_);
  {
    const std::lock_guard lock(mutex_);
    check_held(item, "wait");
  }
  const sync::timeline_reader published(item.producer->page(), channel::published_timeline);
  if (sync::try_wait(published, item.item.number) == wait_result::reached) {
    return;
  }
  const CUdeviceptr address =
      item.producer->for_streams().address_for(stream, channel::published_timeline, "wait", name_);
  auto counted = await_stream_turn(
      stream, item.producer, channel::published_timeline, item.item.number, close_limit, name_);
  streams::enqueue_wait(stream, address, item.item.number, name_);
  counted.commit();
}

void channel_consumer::release(taken_item& item, optional_stream stream) {
  check_usable("release");
  if (stream) {
    streams::check_not_captured(*stream, "release", name_);
  }
  {
    const std::lock_guard lock(mutex_);
    check_held(item, "release");
    options_.mode == consumer_mode::latest ? release_newest(item, stream)
                                           : release_in_order(item, stream);
    item.is_held = false;
    forget_previous_slots();
  }
  handle_table<taken_item>::of_process().remove(item.handle);
}

/// Releases an item of `latest`, each of which has its own timeline.
void channel_consumer::release_newest(const taken_item& item, optional_stream stream) {
  if (stream) {
    streams::enqueue_signal(*stream, own_address(item.item.held_timeline, *stream), 0, name_);
    streams_release_ = true;
  } else {
    range_.page->own_page().words[item.item.held_timeline].store(0, std::memory_order_seq_cst);
  }
  std::erase_if(held_, [&](const auto& each) { return each.get() == &item; });
}

/// Releases an item in the order of numbers: one timeline shows that all items up to a number are
/// released. An item whose predecessors are still held is released after the last of them.
void channel_consumer::release_in_order(taken_item& item, optional_stream stream) {
  if (held_.front().get() != &item) {
    if (stream) {
      item.finished = streams::stream_point::record(*stream, "release", name_);
    }
    return;
  }
  store_released(stream, item.item.release, {});
  held_.pop_front();
  try {
    release_kept_back();
  } catch (const error& why) {  // the next call tries it again
    base::log(log_level::warning, why.what());
  }
}

void channel_consumer::store_released(optional_stream stream,
                                      std::uint64_t value,
                                      std::span<const streams::stream_point> points) {
  released_->store(
      stream,
      value,
      points,
      [this](CUstream storing) {
        return own_address(range_.first + channel::released_timeline, storing);
      },
      "release",
      name_);
  streams_release_ = streams_release_ || stream || released_->is_pending();
}

/// Items that were released before their predecessors.
void channel_consumer::release_kept_back() {
  std::vector<streams::stream_point> finished;
  auto end = held_.begin();
  for (; end != held_.end() && !(*end)->is_held; ++end) {
    if ((*end)->finished) {
      finished.push_back(*(*end)->finished);
    }
  }
  if (end == held_.begin()) {
    return;
  }
  store_released({}, (*std::prev(end))->item.release, finished);
  held_.erase(held_.begin(), end);
}

void channel_consumer::check() {
  check_usable("check");
  {
    const std::lock_guard lock(mutex_);
    check_open("check");
  }
  note_last_producer();
  const std::lock_guard lock(mutex_);
  if (const auto producer = std::exchange(lost_, std::nullopt)) {
    throw error(errc::peer_died,
                "check",
                name_,
                "the producer died before it had completed an item that a stream was given",
                "do not use what the stream has done with it",
                {.pid = *producer});
  }
}

bool channel_consumer::has_ended() const {
  return ended_.load(std::memory_order_relaxed);
}

}  // namespace gpushm::client_detail
