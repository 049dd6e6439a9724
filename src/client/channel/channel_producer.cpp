// SPDX-License-Identifier: Apache-2.0
// The items of a channel: slots are acquired, published, abandoned. channel_admission.cpp has the
// rest of a producer.
#include "client/channel/channel_producer.hpp"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "base/process/deadline.hpp"
#include "base/report/log.hpp"
#include "client/channel/channel_names.hpp"
#include "client/timeline/stream_turn.hpp"
#include "gpu/streams/stream_operations.hpp"
#include "gpu/streams/waiting_streams.hpp"
#include "sync/cpu_wait.hpp"

namespace gpushm::client_detail {

using cuda::CUdeviceptr;
using cuda::CUstream;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using sync::wait_result;
using sync::word_kind;

namespace {

/// Interval at which waits look for consumers that have joined or left meanwhile.
constexpr milliseconds look_again{50};
/// As above, if any of several consumers may end the wait.
constexpr std::chrono::microseconds look_at_others{100};
/// As above, if another stream's wait may end first.
constexpr milliseconds look_for_turn{10};
/// The interval of such looks between calls of an event loop, each of which costs more than a look.
constexpr std::chrono::microseconds shortest_look{2'000};

}  // namespace

// ---- the end ----

channel_producer::~channel_producer() {
  if (base::is_forked_child_of(forks_)) {
    // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): the thread does not exist here
    static_cast<void>(new (std::nothrow) std::jthread(std::move(admitting_)));
    leak(page_);
    leak(name_lease_);
    leak(timelines_);
    return;
  }
  close();
}

void channel_producer::close() noexcept {
  if (base::is_forked_child_of(forks_)) {
    return;
  }
  stop_.request_stop();
  std::vector<std::shared_ptr<acquired_slot>> slots;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_closed_, true)) {
      return;
    }
    slots = std::move(acquired_);
    for (const auto& each : slots) {
      table_->abandon(each->choice);
      each->is_open = false;
    }
  }
  for (const auto& each : slots) {
    handle_table<acquired_slot>::of_process().remove(each->handle);
  }
  admitting_ = {};
  // From here on no other thread uses what the lock guards.
  if (!published_->wait(base::deadline_after(close_limit))) {
    base::log(log_level::warning,
              "channel \"" + name_ +
                  "\": closed while a stream still has items to publish; it ends with this process "
                  "(synchronize the stream before closing the channel)");
    // Streams still use these pages.
    timelines_->pages().keep(std::move(page_));
    for (auto& each : retired_) {
      timelines_->pages().keep(std::move(each.who.range.page));
    }
    for (auto& each : consumers_) {
      timelines_->pages().keep(std::move(each.second.range.page));
    }
    return;
  }
  table_->close();
  for (std::uint32_t timeline = 0; timeline != channel::producer_timelines; ++timeline) {
    sync::timeline_writer(page_->own_page(), timeline).close(word_kind::ended);
  }
  name_lease_.reset();
  if (!await_consumers()) {
    base::log(
        log_level::info,
        "channel \"" + name_ +
            "\": closed before a consumer that it has continued with has asked for items; they "
            "stay as long as this client (close the client later)");
    timelines_->pages().keep(std::move(page_));
  }
}

/// Waits until the previous producer's consumers have opened the page of this one, which they do
/// for its first item. Other consumers have it open. Returns false if one of them has not done so.
bool channel_producer::await_consumers() const {
  if (!is_continuation_ || table_->announced() < table_->first_item()) {
    return true;
  }
  const std::uint64_t own = page_->lease().info().generation;
  const auto until = base::deadline_after(close_limit);
  const auto& consumers = table_->consumers();
  return std::all_of(consumers.begin(), consumers.end(), [&](const channel::consumer_view& each) {
    return each.mode == channel::consumer_mode::share ||
           sync::wait(each.timeline(channel::attached_timeline), own, until) !=
               wait_result::timed_out;
  });
}

void channel_producer::check_usable(std::string_view operation) const {
  check_not_forked(forks_, operation, name_);
}

void channel_producer::check_open(std::string_view operation) const {
  if (is_closed_) {
    throw error(errc::invalid_argument,
                operation,
                name_,
                "the producer is closed",
                "create another producer");
  }
}

void channel_producer::check_open(const acquired_slot& slot, std::string_view operation) const {
  if (!slot.is_open) {
    throw error(errc::invalid_argument,
                operation,
                name_,
                "this slot was published or abandoned before",
                "acquire another slot");
  }
}

// ---- items ----

void channel_producer::drop(std::uint64_t id) {
  table_->drop(id);
  if (const auto at = consumers_.find(id); at != consumers_.end()) {
    // A stream that waits for its timelines has not read them yet.
    retired_.push_back({std::move(at->second), table_->announced() + 1});
    consumers_.erase(at);
  }
}

void channel_producer::drop_gone() {
  std::vector<std::uint64_t> ended;
  std::vector<std::uint64_t> invalid;
  for (const channel::consumer_view& each : table_->consumers()) {
    if (sync::is_terminal(each.timeline(channel::released_timeline).read().word) ||
        has_ended(each)) {
      ended.push_back(each.id);
    } else if (each.mode != channel::consumer_mode::latest && !table_->is_plausible(each)) {
      invalid.push_back(each.id);
    }
  }
  std::for_each(ended.begin(), ended.end(), [&](std::uint64_t id) { drop(id); });
  std::erase_if(lingering_, [](const auto& each) {
    const timeline_range& range = each.second.range;
    return sync::is_terminal(
        sync::timeline_reader(range.page->page(), range.first + channel::released_timeline)
            .read()
            .word);
  });
  for (const std::uint64_t id : invalid) {
    drop(id);
    table_->refuse(id, channel::refused_invalid);
    ++dropped_;
  }
  if (!retired_.empty()) {
    const auto published =
        sync::timeline_reader(page_->page(), channel::published_timeline).read().value();
    std::erase_if(retired_, [&](const retired& each) { return published >= each.until; });
  }
}

std::optional<channel_producer::obstacle> channel_producer::find_obstacle(
    const std::optional<channel::producer_table::choice>& chosen, optional_stream stream) const {
  // Slots with items of the previous producer may still be read.
  if (chosen && chosen->after <= table_->last_of_previous() && !lingering_.empty()) {
    const auto& range = lingering_.begin()->second.range;
    return obstacle{
        sync::timeline_reader(range.page->page(), range.first + channel::released_timeline),
        sync::max_value,
        range.page,
        look_again};
  }
  const auto next = table_->next_obstacle(chosen, stream.has_value());
  if (!next) {
    return std::nullopt;
  }
  const auto pause = next->has_alternatives ? look_at_others : look_again;
  if (next->consumer == nullptr) {
    return obstacle{
        sync::timeline_reader(page_->page(), next->timeline), next->value, page_, pause};
  }
  return obstacle{next->consumer->timeline(next->timeline),
                  next->value,
                  consumers_.at(next->consumer->id).range.page,
                  pause};
}

void channel_producer::end(acquired_slot& slot) noexcept {
  slot.is_open = false;
  std::erase_if(acquired_, [&](const auto& each) { return each.get() == &slot; });
}

std::shared_ptr<acquired_slot> channel_producer::acquire(optional_stream stream,
                                                         milliseconds timeout,
                                                         const std::stop_token& stop) {
  return acquire_until(stream, base::deadline_after(timeout), stop, nullptr);
}

std::shared_ptr<acquired_slot> channel_producer::try_acquire(
    optional_stream stream, std::optional<watched_timeline>& missing) {
  return acquire_until(stream, steady_clock::now(), {}, &missing);
}

std::shared_ptr<acquired_slot> channel_producer::acquire_until(
    optional_stream stream,
    time_point until,
    const std::stop_token& stop,
    std::optional<watched_timeline>* missing) {
  check_usable("acquire");
  if (stream) {
    streams::check_not_captured(*stream, "acquire", name_);
    static_cast<void>(published_for(*stream));  // it may fail, and nothing is changed yet
  }
  const either_stop stops(stop, stop_.get_token());
  std::unique_lock lock(mutex_);
  check_open("acquire");
  std::uint32_t refused = 0;
  for (;;) {
    if (is_closed_) {
      return nullptr;
    }
    drop_gone();
    const auto choice = table_->choose();
    auto late = find_obstacle(choice, stream);
    bool has_turn = true;
    if (!late && stream) {
      late = enqueue_waits(*stream, choice->after);
      has_turn = !late;
    }
    if (late) {
      if (missing != nullptr) {
        const auto pause = std::max(late->look_again, shortest_look);
        missing->emplace(
            watched_timeline{late->on, late->value, late->keep, steady_clock::now() + pause});
        return nullptr;
      }
      // Without the lock: other threads join, leave and publish meanwhile.
      const auto now = steady_clock::now();
      if (stops.token().stop_requested() || (now >= until && has_turn)) {
        return nullptr;
      }
      if (now >= until) {
        throw too_many_waits("acquire", name_);
      }
      const auto next_look = std::min<time_point>(until, now + late->look_again);
      lock.unlock();
      static_cast<void>(sync::wait(late->on, late->value, next_look, stops.token()));
      lock.lock();
      continue;
    }
    auto acquired = std::make_shared<acquired_slot>(shared_from_this(), *choice, stream);
    acquired_.reserve(acquired_.size() + 1);
    if (!table_->acquire(*choice)) {
      // Consumers that hold the slot after all; hostile ones could do so again and again.
      if (++refused > shape_.slots &&
          (steady_clock::now() >= until || stops.token().stop_requested())) {
        return nullptr;
      }
      continue;
    }
    try {
      acquired->handle = handle_table<acquired_slot>::of_process().add(acquired);
    } catch (...) {
      table_->abandon(*choice);
      throw;
    }
    acquired_.push_back(acquired);
    return acquired;
  }
}

/// Makes the stream wait until all `block` consumers have released the items up to `after`.
std::optional<channel_producer::obstacle> channel_producer::enqueue_waits(CUstream stream,
                                                                          std::uint64_t after) {
  for (const channel::consumer_view& each : table_->consumers()) {
    const auto released = each.timeline(channel::released_timeline);
    if (each.mode != channel::consumer_mode::block ||
        sync::releases(released.word().load(std::memory_order_seq_cst), after)) {
      continue;
    }
    const auto& page = consumers_.at(each.id).range.page;
    const std::uint32_t timeline = each.first_timeline + channel::released_timeline;
    auto counted = streams::waiting_streams::of_process().add(
        streams::stream_id(stream, "acquire", name_), released, after, page);
    if (!counted) {
      return obstacle{released, after, page, look_for_turn};
    }
    streams::enqueue_wait(
        stream, page->for_streams().address_for(stream, timeline, "acquire", name_), after, name_);
    counted->commit();
  }
  return std::nullopt;
}

CUdeviceptr channel_producer::published_for(CUstream stream) const {
  return page_->for_streams().address_for(stream, channel::published_timeline, "publish", name_);
}

std::uint64_t channel_producer::publish(acquired_slot& slot,
                                        optional_stream stream,
                                        std::span<const std::byte> metadata) {
  check_usable("publish");
  if (metadata.size() > channel::max_metadata_bytes) {
    throw error(errc::message_too_large,
                "publish",
                name_,
                std::to_string(metadata.size()) + " bytes of metadata",
                "at most " + std::to_string(channel::max_metadata_bytes) + " are allowed");
  }
  if (stream) {
    streams::check_not_captured(*stream, "publish", name_);
  }
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    check_open(slot, "publish");
    // Consumers do not see the item before it is announced: a failed store undoes everything.
    number = table_->prepare(slot.choice, metadata);
    try {
      published_->store(
          stream,
          number,
          {},
          [this](CUstream storing) { return published_for(storing); },
          "publish",
          name_);
    } catch (...) {
      table_->withdraw(slot.choice);
      throw;
    }
    table_->announce(slot.choice);
    end(slot);
  }
  handle_table<acquired_slot>::of_process().remove(slot.handle);
  name_lease_->broker()->published_item(shape_.slot_bytes);
  return number;
}

void channel_producer::abandon(acquired_slot& slot) {
  check_usable("abandon");
  {
    const std::lock_guard lock(mutex_);
    check_open(slot, "abandon");
    table_->abandon(slot.choice);
    end(slot);
  }
  handle_table<acquired_slot>::of_process().remove(slot.handle);
}

gpushm_slot_info channel_producer::info_of(const acquired_slot& slot) const {
  check_usable("slot");
  gpushm_slot_info result{};
  result.data = static_cast<std::byte*>(slots_->region().data()) +
                std::uint64_t{slot.choice.slot} * shape_.slot_stride;
  result.bytes = shape_.slot_bytes;
  result.index = slot.choice.slot;
  result.on_stream = slot.on.has_value();
  result.stream = slot.on.value_or(nullptr);
  result.is_free = !result.on_stream;
  if (!result.is_free) {
    const std::lock_guard lock(mutex_);
    result.is_free = slot.is_open &&
                     table_->find_behind(channel::released_timeline, slot.choice.after) == nullptr;
  }
  return result;
}

void channel_producer::wait_on(const acquired_slot& slot, CUstream stream) {
  check_usable("wait");
  streams::check_not_captured(stream, "wait", name_);
  const auto until = base::deadline_after(close_limit);
  std::unique_lock lock(mutex_);
  for (;;) {
    check_open(slot, "wait");
    const auto late = slot.on ? enqueue_waits(stream, slot.choice.after) : std::nullopt;
    if (!late) {
      return;
    }
    const auto now = steady_clock::now();
    if (now >= until) {
      throw too_many_waits("wait", name_);
    }
    lock.unlock();
    static_cast<void>(sync::wait(late->on,
                                 late->value,
                                 std::min<time_point>(until, now + late->look_again),
                                 stop_.get_token()));
    lock.lock();
  }
}

gpushm_segment* channel_producer::memory_of(const acquired_slot& /*slot*/) const {
  check_usable("slot");
  slots_->take_handle();
  return slots_.get();
}

gpushm_producer_stats channel_producer::stats() const {
  check_usable("stats");
  const std::lock_guard lock(mutex_);
  check_open("stats");
  gpushm_producer_stats result{};
  result.announced = table_->announced();
  result.published =
      sync::timeline_reader(page_->page(), channel::published_timeline).read().value().value_or(0);
  // Consumers of this client that have left are dropped only by the next acquisition: the client
  // itself has their timelines open.
  const auto& consumers = table_->consumers();
  result.consumers = static_cast<std::uint32_t>(
      std::count_if(consumers.begin(), consumers.end(), [&](const channel::consumer_view& each) {
        return !sync::is_terminal(each.timeline(channel::released_timeline).read().word);
      }));
  result.dropped = dropped_;
  result.is_continuation = is_continuation_;
  return result;
}

}  // namespace gpushm::client_detail
