// SPDX-License-Identifier: Apache-2.0
// How a consumer joins a channel, and continues with the next producer.
#include <algorithm>
#include <utility>

#include "base/files/syscall.hpp"
#include "base/process/deadline.hpp"
#include "base/report/has_gone.hpp"
#include "client/channel/channel_consumer.hpp"
#include "client/channel/channel_names.hpp"
#include "client/channel/join_request.hpp"
#include "client/segment/unique_name.hpp"
#include "sync/cpu_wait.hpp"

namespace gpushm::client_detail {

using base::has_gone;
using channel::consumer_mode;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using sync::wait_result;
using sync::word_kind;
namespace names = channel_names;

namespace {

/// Interval at which a wait for a producer's reply looks whether there is another one.
constexpr milliseconds look_again{50};
/// As above, for a producer that has come and gone, and for one that has taken over the previous
/// producer's consumers: it has admitted them before it can be found.
constexpr milliseconds look_for_pages{1'000};

}  // namespace

// ---- begin ----

channel_consumer::channel_consumer(std::shared_ptr<timelines> timelines,
                                   std::string_view name,
                                   const options& options)
    : timelines_(std::move(timelines)),
      name_(name),
      options_(options),
      timeline_count_(channel::first_held_timeline +
                      (options.mode == consumer_mode::latest ? options.held : 0)) {
  timelines_->client().check_usable("open", name);
  names::check("open", name);
  if (options.held > channel::max_held) {
    throw error(errc::invalid_argument,
                "open",
                name,
                "a consumer that holds " + std::to_string(options.held) + " items",
                "at most " + std::to_string(channel::max_held) + " are possible");
  }
  const auto until = base::deadline_after(options.timeout);
  join_any({until, until}, options.stop);
}

/// Joins the present producer, or the first one that appears.
void channel_consumer::join_any(const patience& until, const std::stop_token& stop) {
  for (;;) {
    open_options waiting;
    waiting.timeout = base::time_left(until.for_producer);
    waiting.stop = stop;
    opened_timelines producer;
    try {
      // The name first, so that a missing channel leaves nothing behind.
      producer = timelines_->open_timelines(names::producer(name_), 0, waiting);
    } catch (const error& why) {
      // The name of a producer that has just ended briefly exists longer than its page.
      if (!has_gone(why) || steady_clock::now() >= until.for_producer) {
        throw;
      }
      base::pause_before_retry(milliseconds(1));
      continue;
    }
    if (join(std::move(producer), until.for_reply, stop)) {
      return;
    }
    base::pause_before_retry(milliseconds(1));
  }
}

namespace {

std::optional<channel::table_view> table_of(const opened_timelines& producer) {
  const auto& page = *producer.range.page;
  return producer.range.first == 0 ? table_in(page) : std::nullopt;
}

}  // namespace

/// Returns false if the producer has ended meanwhile, and its slots are gone.
bool channel_consumer::try_open_slots(const channel::table_view& producer) {
  try {
    open_slots(producer);
    return true;
  } catch (const error& why) {
    if (!has_gone(why) || sync::wait(producer.timeline(channel::announced_timeline),
                                     sync::max_value,
                                     steady_clock::now() + look_again) != wait_result::ended) {
      throw;
    }
    return false;
  }
}

/// Asks a producer, whose timelines `producer` has, to admit this consumer. The producer may
/// publish, end and exit as soon as it has admitted it: so timelines and slots are opened before,
/// and the request names this producer, so that no other one admits it. Returns false if it has
/// ended before.
bool channel_consumer::join(opened_timelines producer,
                            time_point until,
                            const std::stop_token& stop) {
  const auto table = table_of(producer);
  if (!table) {
    throw invalid_producer("open");
  }
  if (!try_open_slots(*table)) {
    return false;
  }
  const auto request_deadline = timelines_->client().request_deadline();
  const auto range = timelines_->take_timelines(timeline_count_, request_deadline);
  {
    const std::lock_guard lock(mutex_);
    range_ = range;
    for (std::uint32_t i = 0; i != timeline_count_; ++i) {
      own_timeline(i).reset(0);
    }
    table_.emplace(range_.page->own_page(),
                   range_.first,
                   options_.mode,
                   timeline_count_ - channel::first_held_timeline);
  }
  try {
    joined_lease_ = timelines_->reserve_timelines(
        unique_name(names::consumers(name_)), range_, timeline_count_, request_deadline);
  } catch (...) {
    timelines_->pages().release(range_, timeline_count_);
    throw;
  }
  try {
    const join_request request{
        options_.mode, options_.held, producer.range.page->lease().info().generation};
    joined_lease_->publish(encode(request), "open", request_deadline);
    const attachment attachment = attach({until, until}, stop, std::move(producer));
    if (attachment == attachment::producer_has_ended) {
      timelines_->pages().end(range_, timeline_count_, *joined_lease_);
      return false;
    }
    if (attachment != attachment::done) {
      throw error(stop.stop_requested() ? errc::cancelled : errc::timed_out,
                  "open",
                  name_,
                  "the producer has not replied in time",
                  "see whether its process is stopped, or allow more time");
    }
  } catch (...) {
    timelines_->pages().end(range_, timeline_count_, *joined_lease_);
    throw;
  }
  return true;
}

/// The page of the first later producer that has admitted this consumer, if a process still has
/// that page. The producer may have closed the channel already.
std::shared_ptr<mapped_page> channel_consumer::next_page() const {
  const std::uint64_t last = producer_page_->lease().info().generation;
  auto pages = timelines_->client().list(names::pages(name_));
  std::erase_if(pages, [&](const wire::segment& each) {
    return each.backend != backend::signals || each.generation <= last ||
           each.creator_uid != slots_->info().creator_uid;
  });
  std::sort(pages.begin(), pages.end(), [](const auto& left, const auto& right) {
    return left.generation < right.generation;
  });
  for (const wire::segment& each : pages) {
    try {
      auto page = timelines_->open_page(each.name, each.generation);
      const auto view = table_in(*page);
      if (view && view->start_of(joined_lease_->info().generation)) {
        return page;
      }
    } catch (const error& why) {
      if (!has_gone(why)) {
        throw;
      }
    }
  }
  return nullptr;
}

/// Returns the timelines of the next producer; nullopt if there is none in time.
std::optional<opened_timelines> channel_consumer::next_producer(time_point until,
                                                                const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const milliseconds left = base::time_left(until);
    try {
      opened_timelines opened;
      opened.range.page = next_page();
      if (opened.range.page) {
        return opened;
      }
      open_options waiting;
      waiting.timeout = std::min<milliseconds>(left, look_for_pages);
      waiting.stop = stop;
      return timelines_->open_timelines(names::producer(name_), 0, waiting);
    } catch (const error& why) {
      const bool may_come = has_gone(why);
      if (why.code() == errc::cancelled || (may_come && left <= milliseconds(0))) {
        return std::nullopt;
      }
      if (!may_come) {
        throw;
      }
      base::pause_before_retry(milliseconds(1));
    }
  }
  return std::nullopt;
}

/// Waits for a producer's reply in its table. With `may_be_unknown`, gives up if the producer has
/// not seen this consumer since `doubtful_`. Throws the reason if the producer has refused it.
channel_consumer::admission channel_consumer::await_admission(const channel::table_view& producer,
                                                              bool may_be_unknown,
                                                              time_point until,
                                                              const std::stop_token& stop) const {
  const std::uint64_t own = joined_lease_->info().generation;
  const sync::timeline_reader changes = producer.timeline(channel::consumers_timeline);
  for (;;) {
    const std::uint64_t seen = changes.read().word;
    const auto entry = producer.entry_of(own);
    if (const auto start = producer.start_of(own); entry && start) {
      if (*start == channel::refused_too_many) {
        throw error(errc::quota_exceeded,
                    "open",
                    name_,
                    "the channel has no room for this consumer",
                    "use fewer consumers (at most 64), or more slots: two more than consumers of "
                    "the newest item hold together");
      }
      if (*start > sync::max_value) {
        throw error(errc::peer_died,
                    "open",
                    name_,
                    "the producer has dropped this consumer: its timelines were not valid",
                    "report this as a bug");
      }
      return {attachment::done, *start, *entry};
    }
    if (sync::kind_of(seen) != word_kind::value) {
      return {attachment::producer_has_ended};
    }
    const auto now = steady_clock::now();
    if (may_be_unknown && now >= doubtful_.since + look_for_pages) {
      return {attachment::is_unknown};
    }
    if (now >= until || stop.stop_requested()) {
      return {attachment::not_in_time};
    }
    static_cast<void>(sync::wait(changes, seen + 1, std::min(until, now + look_again), stop));
  }
}

/// Adopts a producer that has admitted this consumer. Returns false if its slots are gone, because
/// it has ended.
bool channel_consumer::adopt(const channel::table_view& producer,
                             opened_timelines opened,
                             const admission& admitted) {
  if (!try_open_slots(producer)) {
    return false;
  }
  const auto checked = producer.within(slots_generation_, slots_->info().size_bytes);
  if (!checked) {
    throw invalid_producer("open");
  }
  const std::uint64_t page = opened.range.page->lease().info().generation;
  const std::lock_guard lock(mutex_);
  producer_lease_ = std::move(opened.lease);
  producer_page_ = std::move(opened.range.page);
  const bool is_first = !table_->is_attached();
  table_->attach(*checked, admitted.start, admitted.entry, page);
  if (is_first) {
    released_ = std::make_unique<streams::ordered_stores>(own_timeline(channel::released_timeline),
                                                          admitted.start - 1);
    expected_ = admitted.start;
  }
  return true;
}

/// Waits for the admission by the producer of `first`, if it is set, otherwise by the next
/// producer.
channel_consumer::attachment channel_consumer::attach(const patience& until,
                                                      const std::stop_token& stop,
                                                      opened_timelines first) {
  const bool has_first = first.range.page != nullptr;
  for (bool is_first = has_first; !stop.stop_requested(); is_first = false) {
    auto opened = is_first ? std::optional(std::exchange(first, {}))
                           : next_producer(until.for_producer, stop);
    if (!opened) {
      return attachment::not_in_time;
    }
    const auto view = opened->range.first == 0 ? table_in(*opened->range.page) : std::nullopt;
    if (!view) {
      throw invalid_producer("open");
    }
    const std::uint64_t producer = opened->range.page->lease().info().generation;
    if (!has_first && doubtful_.producer != producer) {
      doubtful_ = {producer, steady_clock::now()};
    }
    const admission admitted = await_admission(*view, !has_first, until.for_reply, stop);
    if (admitted.outcome == attachment::done) {
      if (adopt(*view, std::move(*opened), admitted)) {
        return attachment::done;
      }
    } else if (admitted.outcome != attachment::producer_has_ended) {
      return admitted.outcome;
    }
    if (has_first) {
      return attachment::producer_has_ended;
    }
    if (steady_clock::now() >= until.for_producer) {
      return attachment::not_in_time;
    }
    base::pause_before_retry(milliseconds(1));  // its name is free soon
  }
  return attachment::not_in_time;
}

void channel_consumer::open_slots(const channel::table_view& producer) {
  const std::uint64_t generation = producer.segment();
  if (slots_ && slots_generation_ == generation) {
    return;
  }
  open_options reading;
  reading.device = options_.device;
  auto opened = timelines_->client().open_generation(name_, generation, reading);
  if (!producer.within(generation, opened->info().size_bytes)) {
    throw invalid_producer("open");
  }
  const std::lock_guard lock(mutex_);
  if (slots_) {
    previous_slots_.push_back(std::move(slots_));
  }
  forget_previous_slots();
  slots_ = std::move(opened);
  slots_generation_ = generation;
}

error channel_consumer::invalid_producer(std::string_view operation) const {
  return {errc::protocol_error,
          operation,
          name_,
          "the producer has stored what is not possible",
          "report this as a bug of that program, or stop it"};
}

// ---- the next producer ----

/// Joins the next producer with new timelines: a `share` consumer counts the items of one producer,
/// and a consumer that the next producer does not have shares no state with it. Ends the old
/// timelines after that: until then the producer sees that there are consumers. Returns false if
/// there was no producer in time.
bool channel_consumer::join_next_producer(const patience& until, const std::stop_token& stop) {
  {
    const std::lock_guard lock(mutex_);
    if (!held_.empty()) {
      throw error(errc::too_many_requests,
                  "next",
                  name_,
                  "the producer has died, and this consumer still holds " +
                      std::to_string(held_.size()) + " of its items",
                  "release them first");
    }
  }
  if (!await_releases(until.for_reply, stop)) {
    return false;
  }
  std::unique_lock lock(mutex_);
  const auto range = range_;
  const auto lease = joined_lease_;
  const auto table = table_;
  auto released = std::move(released_);
  lock.unlock();
  const auto restore = [&] {
    const std::lock_guard relock(mutex_);
    range_ = range;
    joined_lease_ = lease;
    table_.reset();
    table_.emplace(*table);
    released_ = std::move(released);
  };
  try {
    join_any(until, stop);
  } catch (const error& why) {
    restore();
    if (why.code() == errc::timed_out || why.code() == errc::cancelled || has_gone(why)) {
      return false;
    }
    throw;
  } catch (...) {
    restore();
    throw;
  }
  timelines_->pages().end(range, timeline_count_, *lease);
  lock.lock();
  streams_release_ = false;
  on_streams_ = 0;
  return true;
}

/// Continues with the next producer. It does not have this consumer if broker and keeper have died
/// with the previous producer, whose page was not handed back yet when the next one began.
bool channel_consumer::go_on(const patience& until, const std::stop_token& stop) {
  if (options_.mode != consumer_mode::share) {
    const attachment found = attach(until, stop, {});
    if (found != attachment::is_unknown) {
      return found == attachment::done;
    }
  }
  return join_next_producer(until, stop);
}

}  // namespace gpushm::client_detail
