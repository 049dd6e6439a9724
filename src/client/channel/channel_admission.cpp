// SPDX-License-Identifier: Apache-2.0
// How a producer begins or continues a channel, and admits its consumers.
#include <algorithm>
#include <array>
#include <new>
#include <utility>
#include <vector>

#include "base/files/syscall.hpp"
#include "base/process/deadline.hpp"
#include "base/process/thread.hpp"
#include "base/report/has_gone.hpp"
#include "base/report/log.hpp"
#include "client/channel/channel_names.hpp"
#include "client/channel/channel_producer.hpp"
#include "client/segment/subscription_impl.hpp"
#include "client/segment/unique_name.hpp"
#include "client/session/subject.hpp"
#include "client/timeline/stream_turn.hpp"
#include "gpu/streams/stream_operations.hpp"
#include "sync/cpu_wait.hpp"

namespace gpushm::client_detail {

using std::chrono::milliseconds;
using sync::wait_result;
namespace names = channel_names;

namespace {

/// From this number of consumers on, waiters poll instead of being woken one by one.
constexpr std::size_t many_consumers = 8;
/// Pause after a failure of the connection to the broker.
constexpr milliseconds reconnect_pause{100};

channel::producer_table::shape shape_of(const channel_producer::options& options) {
  const std::uint64_t stride = (options.slot_bytes + channel::slot_alignment - 1) /
                               channel::slot_alignment * channel::slot_alignment;
  return {options.slots, options.slot_bytes, stride, 0};
}

void check_options(std::string_view name, const channel_producer::options& options) {
  constexpr std::uint64_t most = (std::uint64_t{1} << 56U) / channel::max_slots;
  if (options.slots == 0 || options.slots > channel::max_slots) {
    throw error(errc::invalid_argument,
                "create",
                name,
                "a channel of " + std::to_string(options.slots) + " slots",
                "1 to " + std::to_string(channel::max_slots) + " are possible");
  }
  if (options.slot_bytes == 0 || options.slot_bytes > most) {
    throw error(errc::invalid_argument,
                "create",
                name,
                "slots of " + std::to_string(options.slot_bytes) + " bytes",
                "pass the size of one item");
  }
}

/// Reads a consumer's description of itself. Returns false if it is not possible.
bool describe_consumer(const std::optional<join_request>& request,
                       std::uint32_t timelines,
                       channel::consumer_view& into) {
  using channel::consumer_mode;
  if (!request || timelines < channel::first_held_timeline) {
    return false;
  }
  into.mode = request->mode;
  into.held = timelines - channel::first_held_timeline;
  into.depth = request->depth;
  return into.mode == consumer_mode::share
             ? into.held == 0 && into.depth != 0 && into.depth <= channel::max_held
             : (into.held != 0) == (into.mode == consumer_mode::latest);
}

}  // namespace

// ---- begin ----

channel_producer::channel_producer(std::shared_ptr<timelines> timelines,
                                   std::string_view name,
                                   const options& options)
    : timelines_(std::move(timelines)), name_(name), shape_(shape_of(options)) {
  timelines_->client().check_usable("create", name);
  names::check("create", name);
  check_options(name, options);
  begin(options);
  admitting_ = base::start_thread("gpushm-channel", [this] { admit_consumers(); });
}

void channel_producer::begin(const options& options) {
  const auto deadline = timelines_->client().request_deadline();
  page_ = timelines_->make_page(
      unique_name(names::pages(name_)), channel::page_bytes(shape_.slots), deadline);
  // Only one process has this name: a second producer fails here.
  name_lease_ = reserve_name(deadline, options.stop);
  open_options existing;
  existing.access = access::read_write;
  existing.device = options.device == "auto" ? std::string() : options.device;
  slots_ = timelines_->client().try_open(name_, existing);
  const auto last = find_previous([](const channel::table_view&) { return true; });
  const auto& view = last.table;
  if (view) {
    await_end(*view, options.stop);
  }
  create_options memory;
  memory.size_bytes = shape_.slots * shape_.slot_stride;
  memory.device = options.device;
  memory.huge_pages = options.huge_pages;
  if (slots_ && view && view->closed() && view->segment() == slots_->info().generation) {
    // Its consumers may still take and read the last items, even later: no producer writes them
    // again.
    memory.lifetime = slots_->info().lifetime;
    memory.device = options.device == "auto" ? slots_->info().device.text() : options.device;
    try {
      timelines_->client().remove(name_);
    } catch (const error& why) {
      if (why.code() != errc::no_such_segment) {  // it is already removed
        throw;
      }
    }
    slots_.reset();
  }
  if (slots_) {
    check_slots(view);
  } else {
    slots_ = timelines_->client().create(name_, memory);
    slots_->lease("create").publish({}, "create", deadline);
  }
  shape_.segment = slots_->info().generation;
  if (view) {
    continue_channel(last);
  } else {  // no process has the page of a previous producer, so it has no consumers
    table_.emplace(page_->own_page(), page_->extra(), shape_);
    begin_publishing();
  }
  name_lease_->publish({}, "create", deadline);
}

/// Reserves the name that only one process has. Throws already_exists if another producer has it.
/// After its end a producer briefly keeps the name, until the broker has handled the end.
std::shared_ptr<segment_lease> channel_producer::reserve_name(
    std::chrono::steady_clock::time_point deadline, const std::stop_token& stop) const {
  for (;;) {
    try {
      return timelines_->reserve_timelines(
          names::producer(name_), {page_, 0}, channel::producer_timelines, deadline, stop);
    } catch (const error& why) {
      if (why.code() != errc::already_exists || stop.stop_requested() ||
          std::chrono::steady_clock::now() >= deadline || !has_ended_producer()) {
        throw;
      }
    }
    base::pause_before_retry(milliseconds(1));
  }
}

/// Whether the producer that has the name, if any, has ended its timelines.
bool channel_producer::has_ended_producer() const {
  try {
    const auto found = timelines_->open_timelines(names::producer(name_), 0, {});
    return sync::is_terminal(sync::timeline_reader(found.range.page->page(),
                                                   found.range.first + channel::announced_timeline)
                                 .read()
                                 .word);
  } catch (const error& why) {
    // Its name is free by now, or has a producer that is about to publish it.
    return base::has_gone(why);
  }
}

/// Prepares the stores of published items. The table has set the timeline, and only they change it
/// from now on.
void channel_producer::begin_publishing() {
  const sync::timeline_writer timeline(page_->own_page(), channel::published_timeline);
  published_.emplace(timeline, timeline.reader().read().value().value_or(0));
}

/// Throws size_mismatch if the slots of the previous producer differ from this producer's.
void channel_producer::check_slots(const std::optional<channel::table_view>& last) const {
  const auto& existing = slots_->info();
  const std::uint64_t wanted = shape_.slots * shape_.slot_stride;
  const bool has_other_number =
      last && last->segment() == existing.generation && last->slots() != shape_.slots;
  if (existing.size_bytes == wanted && !has_other_number) {
    return;
  }
  throw error(errc::size_mismatch,
              "create",
              name_,
              "there is a segment of " + std::to_string(existing.size_bytes) +
                  " bytes of this name" +
                  (has_other_number ? ", with " + std::to_string(last->slots()) + " slots" : "") +
                  ", and the channel needs " + std::to_string(wanted) + " for " +
                  std::to_string(shape_.slots) + " slots",
              "continue a channel with its slot size and number, or remove the segment");
}

/// Finds the last previous producer whose table is accepted, if a process still has its page.
channel_producer::previous_producer channel_producer::find_previous(
    const std::function<bool(const channel::table_view&)>& accepts) const {
  auto pages = timelines_->client().list(names::pages(name_));
  std::erase_if(pages, [](const auto& each) { return each.backend != backend::signals; });
  std::sort(pages.begin(), pages.end(), [](const auto& left, const auto& right) {
    return left.generation > right.generation;
  });
  const auto own = std::find_if(pages.begin(), pages.end(), [&](const auto& each) {
    return each.generation == page_->lease().info().generation;
  });
  if (own == pages.end()) {
    return {};  // it was removed: only an administrator does that
  }
  // Another user of the domain could offer a page of its own.
  const std::uint32_t uid = slots_ ? slots_->info().creator_uid : own->creator_uid;
  for (auto each = std::next(own); each != pages.end(); ++each) {
    if (each->creator_uid != uid) {
      continue;
    }
    try {
      auto page = timelines_->open_page(each->name, each->generation);
      const auto table = table_in(*page);
      if (table && accepts(*table)) {  // without a table that producer never began
        return {std::move(page), table};
      }
    } catch (const error& why) {
      if (!base::has_gone(why)) {
        throw;
      }
      base::log(log_level::debug, why.what());  // it has just been freed
    }
  }
  return {};
}

/// Waits until the timelines of the previous producer have ended.
void channel_producer::await_end(const channel::table_view& last,
                                 const std::stop_token& stop) const {
  // It no longer has the name, so it is behind the fence, and the broker is ending its timelines.
  for (const std::uint32_t timeline : {channel::announced_timeline, channel::published_timeline}) {
    const auto result = sync::wait(
        last.timeline(timeline), sync::max_value, timelines_->client().request_deadline(), stop);
    if (result == wait_result::stopped) {
      throw cancelled({"create", name_});
    }
    if (result != wait_result::ended) {
      throw error(errc::timed_out,
                  "create",
                  name_,
                  "the previous producer has not ended",
                  "try again; if this repeats, restart its consumers");
    }
  }
}

void channel_producer::continue_channel(const previous_producer& previous) {
  const channel::table_view& last = *previous.table;
  table_.emplace(page_->own_page(), page_->extra(), shape_, last);
  begin_publishing();
  is_continuation_ = true;
  // Before the first item, which is the next one of all consumers.
  auto present = timelines_->client().list(names::consumers(name_));
  // Present consumers first: they may hold items, and there may not be room for all.
  std::stable_partition(present.begin(), present.end(), [&](const auto& each) {
    return last.start_of(each.generation).value_or(sync::max_value + 1) <= sync::max_value;
  });
  if (last.closed()) {
    previous_page_ = previous.page->lease().info().generation;
  } else if (last.segment() == shape_.segment) {
    keep_workers_of(last, present);
  }
  admit_present(present);
}

/// Keeps the `share` consumers of the previous producer. They join again, with new timelines, when
/// they have released its items.
void channel_producer::keep_workers_of(const channel::table_view& previous,
                                       const std::vector<wire::segment>& present) {
  for (const wire::segment& each : present) {
    if (!each.published || each.backend != backend::timeline ||
        previous.start_of(each.generation).value_or(sync::max_value + 1) > sync::max_value) {
      continue;
    }
    try {
      auto opened = timelines_->open_timelines(each.name, each.generation, {});
      const auto request = decode_join_request(opened.lease->metadata());
      if (request && request->mode == channel::consumer_mode::share) {
        const std::lock_guard lock(mutex_);
        lingering_.insert_or_assign(each.generation,
                                    consumer{std::move(opened.lease), std::move(opened.range)});
      }
    } catch (const error& why) {
      base::log(log_level::debug, why.what());  // it has left
    }
  }
}

// ---- consumers ----

/// Whether the consumer belongs to a producer that has closed the channel: it gets no items of this
/// one.
bool channel_producer::has_ended(const channel::consumer_view& view) const {
  return sync::is_terminal(view.timeline(channel::taken_timeline).read().word) ||
         (previous_page_ != 0 &&
          view.timeline(channel::attached_timeline).read().word == previous_page_);
}

/// A request names the producer whose timelines and slots its consumer has open. Another producer
/// may admit the consumer only if a previous one has done so, because the consumer then continues
/// with the next one. It must not if that producer has closed the channel: the consumer ends with
/// it, even if it has not seen yet that it was admitted. A consumer has the page of the last
/// producer that has admitted it, so that page exists.
bool channel_producer::is_for_this(const join_request& request,
                                   const channel::consumer_view& view) const {
  if (request.producer == page_->lease().info().generation) {
    return true;
  }
  const auto previous = find_previous(
      [&](const channel::table_view& each) { return each.start_of(view.id).has_value(); });
  if (!previous.table) {
    return false;
  }
  const std::uint64_t attached = view.timeline(channel::attached_timeline).read().word;
  const std::uint64_t current = attached != 0 ? attached : request.producer;
  return !previous.table->closed() || current != previous.page->lease().info().generation;
}

void channel_producer::admit(const std::string& name, std::uint64_t generation) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      if (consumers_.contains(generation) || lingering_.contains(generation)) {
        return;
      }
    }
    auto opened = timelines_->open_timelines(name, generation, {});
    const auto request = decode_join_request(opened.lease->metadata());
    channel::consumer_view joined;
    joined.id = generation;
    joined.page = &opened.range.page->page();
    joined.first_timeline = opened.range.first;
    const bool is_valid = describe_consumer(request, opened.count, joined);
    if (is_valid && !is_for_this(*request, joined)) {
      return;
    }
    const std::lock_guard lock(mutex_);
    if (is_valid && has_ended(joined)) {
      return;
    }
    if (!is_valid) {
      table_->refuse(generation, channel::refused_invalid);
      ++dropped_;
      return;
    }
    drop_gone();
    if (!table_->has_room(joined)) {
      table_->refuse(generation, channel::refused_too_many);
      return;
    }
    consumers_.insert_or_assign(generation,
                                consumer{std::move(opened.lease), std::move(opened.range)});
    table_->add(joined);
    if (consumers_.size() >= many_consumers) {
      for (const std::uint32_t timeline :
           {channel::announced_timeline, channel::published_timeline}) {
        sync::timeline_writer(page_->own_page(), timeline).expect_many();
      }
    }
  } catch (const std::exception& why) {  // it has left meanwhile, or cannot be opened
    base::log(log_level::debug, why.what());
  }
}

void channel_producer::admit_present(const std::vector<wire::segment>& present) {
  for (const wire::segment& each : present) {
    if (each.published && each.backend == backend::timeline) {
      admit(each.name, each.generation);
    }
  }
}

void channel_producer::admit_consumers() noexcept {
  const std::stop_token stop = stop_.get_token();
  const std::string prefix = names::consumers(name_);
  while (!stop.stop_requested()) {
    try {
      std::vector<wire::segment> present;
      subscription_impl events(timelines_->client().shared_from_this(), prefix, &present);
      admit_present(present);
      while (!stop.stop_requested()) {
        const auto got = events.next(std::chrono::hours(1), stop);
        if (!got) {
          continue;
        }
        if (got->kind == event_kind::published) {
          admit(got->name, got->generation);
        } else if (got->kind == event_kind::resync) {
          admit_present(timelines_->client().list(prefix));
        } else if (got->kind == event_kind::removed) {
          const std::lock_guard lock(mutex_);
          drop_gone();  // its timelines have ended
        }
      }
    } catch (const std::exception& why) {  // the broker is gone: the channel continues
      base::log(log_level::debug, why.what());
      base::pause_before_retry(reconnect_pause);
    }
  }
}

}  // namespace gpushm::client_detail
