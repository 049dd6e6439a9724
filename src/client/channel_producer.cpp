// SPDX-License-Identifier: Apache-2.0
#include "client/channel_producer.hpp"

#include <algorithm>
#include <array>
#include <new>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/has_gone.hpp"
#include "base/log.hpp"
#include "base/syscall.hpp"
#include "base/thread.hpp"
#include "client/channel_names.hpp"
#include "client/stream_turn.hpp"
#include "client/subject.hpp"
#include "client/subscription_impl.hpp"
#include "client/unique_name.hpp"
#include "streams/stream_operations.hpp"
#include "sync/cpu_wait.hpp"

namespace {

using gpushm::errc;
using gpushm::error;
using gpushm::cuda::CUdeviceptr;
using gpushm::cuda::CUstream;
using gpushm::sync::wait_result;
using gpushm::sync::word_kind;
using std::chrono::milliseconds;
namespace base = gpushm::base;
namespace channel = gpushm::channel;
namespace detail = gpushm::detail;
namespace names = gpushm::detail::channel_names;
namespace sync = gpushm::sync;

/// Interval at which waits look for consumers that have joined or left meanwhile.
constexpr milliseconds look_again{50};
/// So many are not woken one by one for each item.
constexpr std::size_t many_consumers = 8;
/// As above, if any of several consumers may end the wait.
constexpr std::chrono::microseconds look_at_others{100};
/// Pause after a failure of the connection to the broker.
constexpr milliseconds reconnect_pause{100};

channel::producer_table::shape shape_of(const gpushm_producer::options& wanted) {
  const std::uint64_t stride = (wanted.slot_bytes + channel::slot_alignment - 1) /
                               channel::slot_alignment * channel::slot_alignment;
  return {wanted.slots, wanted.slot_bytes, stride, 0};
}

void check_options(std::string_view name, const gpushm_producer::options& wanted) {
  constexpr std::uint64_t most = (std::uint64_t{1} << 56U) / channel::max_slots;
  if (wanted.slots == 0 || wanted.slots > channel::max_slots) {
    throw error(errc::invalid_argument,
                "create",
                name,
                "a channel of " + std::to_string(wanted.slots) + " slots",
                "1 to " + std::to_string(channel::max_slots) + " are possible");
  }
  if (wanted.slot_bytes == 0 || wanted.slot_bytes > most) {
    throw error(errc::invalid_argument,
                "create",
                name,
                "slots of " + std::to_string(wanted.slot_bytes) + " bytes",
                "pass the size of one item");
  }
}

/// What a consumer has said about itself; false: not possible.
bool describe_consumer(const std::optional<detail::channel_claim>& claim,
                       std::uint32_t words,
                       channel::member& into) {
  using channel::consumer_mode;
  if (!claim || words < channel::first_held_word) {
    return false;
  }
  into.mode = claim->mode;
  into.held = words - channel::first_held_word;
  into.depth = claim->depth;
  return into.mode == consumer_mode::share
             ? into.held == 0 && into.depth != 0 && into.depth <= channel::max_held
             : (into.held != 0) == (into.mode == consumer_mode::latest);
}

}  // namespace

// ---- begin and end ----

gpushm_producer::gpushm_producer(std::shared_ptr<detail::client_impl> client,
                                 std::string_view name,
                                 const options& wanted)
    : client_(std::move(client)), name_(name), shape_(shape_of(wanted)) {
  client_->check_usable("create", name);
  names::check("create", name);
  check_options(name, wanted);
  begin(wanted);
  admitting_ = base::start_thread("gpushm-channel", [this] { admit_consumers(); });
}

void gpushm_producer::begin(const options& wanted) {
  const auto deadline = client_->request_deadline();
  page_ = client_->make_page(
      detail::unique_name(names::pages(name_)), channel::page_bytes(shape_.slots), deadline);
  // Only one process has this name: a second producer ends here.
  claim_ = client_->reserve_words(
      names::producer(name_), {page_, 0}, channel::producer_words, deadline, wanted.stop);
  gpushm::open_options existing;
  existing.access = gpushm::access::read_write;
  existing.device = wanted.device == "auto" ? std::string() : wanted.device;
  slots_ = client_->try_open(name_, existing);
  const auto last = find_former([](const channel::table_view&) { return true; });
  const auto& view = last.table;
  if (view) {
    await_end(*view, wanted.stop);
  }
  gpushm::create_options memory;
  memory.size_bytes = shape_.slots * shape_.slot_stride;
  memory.device = wanted.device;
  memory.huge_pages = wanted.huge_pages;
  if (slots_ && view && view->closed() && view->segment() == slots_->info().generation) {
    // Its consumers may still take and read the last items, also later: nobody writes them again.
    memory.lifetime = slots_->info().lifetime;
    memory.device = wanted.device == "auto" ? slots_->info().device.text() : wanted.device;
    try {
      client_->remove(name_);
    } catch (const error& why) {
      if (why.code() != errc::no_such_segment) {  // somebody has removed it already
        throw;
      }
    }
    slots_.reset();
  }
  if (slots_) {
    check_slots(view);
  } else {
    slots_ = client_->create(name_, memory);
    slots_->lease("create").publish({}, "create", deadline);
  }
  shape_.segment = slots_->info().generation;
  if (view) {
    continue_channel(last);
  } else {  // nobody has the page of a producer before: there is no member of its channel
    table_.emplace(page_->own_page(), page_->extra(), shape_);
  }
  claim_->publish({}, "create", deadline);
}

/// Throws size_mismatch if there are other slots than those that this producer wants.
void gpushm_producer::check_slots(const std::optional<channel::table_view>& last) const {
  const auto& found = slots_->info();
  const std::uint64_t wanted = shape_.slots * shape_.slot_stride;
  const bool has_other_number =
      last && last->segment() == found.generation && last->slots() != shape_.slots;
  if (found.size_bytes == wanted && !has_other_number) {
    return;
  }
  throw error(errc::size_mismatch,
              "create",
              name_,
              "there is a segment of " + std::to_string(found.size_bytes) + " bytes of this name" +
                  (has_other_number ? ", with " + std::to_string(last->slots()) + " slots" : "") +
                  ", and the channel needs " + std::to_string(wanted) + " for " +
                  std::to_string(shape_.slots) + " slots",
              "continue a channel with its slot size and number, or remove the segment");
}

/// The last producer before whose table is accepted, if a process still has its page.
gpushm_producer::former_producer gpushm_producer::find_former(
    const std::function<bool(const channel::table_view&)>& accepts) const {
  auto all = client_->list(names::pages(name_));
  std::erase_if(all, [](const auto& each) { return each.backend != gpushm::backend::signals; });
  std::sort(all.begin(), all.end(), [](const auto& left, const auto& right) {
    return left.generation > right.generation;
  });
  const auto own = std::find_if(all.begin(), all.end(), [&](const auto& each) {
    return each.generation == page_->lease().info().generation;
  });
  if (own == all.end()) {
    return {};  // it was removed: only an administrator does that
  }
  // Another user of the domain could offer a page of its own.
  const std::uint32_t uid = slots_ ? slots_->info().creator_uid : own->creator_uid;
  for (auto each = std::next(own); each != all.end(); ++each) {
    if (each->creator_uid != uid) {
      continue;
    }
    try {
      auto page = client_->open_page(each->name, each->generation);
      const auto table = detail::table_in(*page);
      if (table && accepts(*table)) {  // without one it has not begun: there was another producer
        return {std::move(page), table};
      }
    } catch (const error& why) {
      if (!base::has_gone(why)) {
        throw;
      }
      base::log(gpushm::log_level::debug, why.what());  // it has just been freed
    }
  }
  return {};
}

/// Waits until the words of the producer before have ended.
void gpushm_producer::await_end(const channel::table_view& last,
                                const std::stop_token& stop) const {
  // It has no name any more, so it is behind the fence: the broker ends its words now.
  for (const std::uint32_t word : {channel::announced_word, channel::published_word}) {
    const auto result =
        sync::wait(last.word(word), sync::max_value, client_->request_deadline(), stop);
    if (result == wait_result::stopped) {
      throw detail::cancelled({"create", name_});
    }
    if (result != wait_result::ended) {
      throw error(errc::timed_out,
                  "create",
                  name_,
                  "the producer before has not ended",
                  "try again; if this repeats, restart its consumers");
    }
  }
}

void gpushm_producer::continue_channel(const former_producer& former) {
  const channel::table_view& last = *former.table;
  table_.emplace(page_->own_page(), page_->extra(), shape_, last);
  is_continuation_ = true;
  // Before the first item, which is the next one of all members.
  auto present = client_->list(names::consumers(name_));
  // Members first: they may hold items, and there may not be room for all.
  std::stable_partition(present.begin(), present.end(), [&](const auto& each) {
    return last.start_of(each.generation).value_or(sync::max_value + 1) <= sync::max_value;
  });
  if (last.closed()) {
    former_page_ = former.page->lease().info().generation;
  } else if (last.segment() == shape_.segment) {
    keep_workers_of(last, present);
  }
  admit_present(present);
}

/// Those that share the work join again, with other words, when they have finished with the items
/// of the producer before.
void gpushm_producer::keep_workers_of(const channel::table_view& dead,
                                      const std::vector<gpushm::wire::segment>& present) {
  for (const gpushm::wire::segment& each : present) {
    if (!each.published || each.backend != gpushm::backend::timeline ||
        dead.start_of(each.generation).value_or(sync::max_value + 1) > sync::max_value) {
      continue;
    }
    try {
      auto opened = client_->open_words(each.name, each.generation, {});
      const auto claim = detail::decode_claim(opened.lease->metadata());
      if (claim && claim->mode == channel::consumer_mode::share) {
        const std::lock_guard lock(mutex_);
        lingering_.insert_or_assign(each.generation,
                                    consumer{std::move(opened.lease), std::move(opened.words)});
      }
    } catch (const error& why) {
      base::log(gpushm::log_level::debug, why.what());  // it has left
    }
  }
}

gpushm_producer::~gpushm_producer() {
  if (base::is_forked_child_of(forks_)) {
    // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): the thread does not exist here
    static_cast<void>(new (std::nothrow) std::jthread(std::move(admitting_)));
    detail::leak(page_);
    detail::leak(claim_);
    detail::leak(client_);
    return;
  }
  stop_.request_stop();
  admitting_ = {};
  const std::lock_guard lock(mutex_);
  if (acquired_) {
    table_->abandon(*acquired_);
  }
  const sync::timeline_reader published(page_->page(), channel::published_word);
  if (sync::wait(published, table_->announced(), base::deadline_after(detail::close_limit)) ==
      wait_result::timed_out) {
    base::log(gpushm::log_level::warning,
              "channel \"" + name_ +
                  "\": closed before a stream has published what it was given; it ends with this "
                  "process (synchronize the stream before closing the channel)");
    // A stream still uses these.
    client_->pages().keep(std::move(page_));
    for (auto& each : retired_) {
      client_->pages().keep(std::move(each.who.words.page));
    }
    for (auto& each : consumers_) {
      client_->pages().keep(std::move(each.second.words.page));
    }
    return;
  }
  table_->close();
  for (std::uint32_t word = 0; word != channel::producer_words; ++word) {
    sync::timeline_writer(page_->own_page(), word).close(word_kind::ended);
  }
  claim_.reset();
  if (!await_members()) {
    base::log(
        gpushm::log_level::info,
        "channel \"" + name_ +
            "\": closed before a consumer that it has continued with has asked for items; they "
            "stay as long as this client (close the client later)");
    client_->pages().keep(std::move(page_));
  }
}

/// Members of the producer before open the page of this one when they want its first item. Others
/// have it open. False: one of them has not done so yet.
bool gpushm_producer::await_members() const {
  if (!is_continuation_ || table_->announced() < table_->first_item()) {
    return true;
  }
  const std::uint64_t own = page_->lease().info().generation;
  const auto until = base::deadline_after(detail::close_limit);
  const auto& all = table_->members();
  return std::all_of(all.begin(), all.end(), [&](const channel::member& each) {
    return each.mode == channel::consumer_mode::share ||
           sync::wait(each.word(channel::attached_word), own, until) != wait_result::timed_out;
  });
}

void gpushm_producer::check_usable(std::string_view operation) const {
  detail::check_not_forked(forks_, operation, name_);
}

// ---- items ----

void gpushm_producer::drop(std::uint64_t id) {
  table_->drop(id);
  if (const auto at = consumers_.find(id); at != consumers_.end()) {
    // A stream that waits for its words has not looked at them yet.
    retired_.push_back({std::move(at->second), table_->announced() + 1});
    consumers_.erase(at);
  }
}

void gpushm_producer::drop_gone() {
  std::vector<std::uint64_t> ended;
  std::vector<std::uint64_t> invalid;
  for (const channel::member& each : table_->members()) {
    if (sync::is_terminal(each.word(channel::released_word).read().word) || has_ended(each)) {
      ended.push_back(each.id);
    } else if (each.mode != channel::consumer_mode::latest && !table_->is_plausible(each)) {
      invalid.push_back(each.id);
    }
  }
  std::for_each(ended.begin(), ended.end(), [&](std::uint64_t id) { drop(id); });
  std::erase_if(lingering_, [](const auto& each) {
    const detail::own_words& words = each.second.words;
    return sync::is_terminal(
        sync::timeline_reader(words.page->page(), words.first + channel::released_word)
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
        sync::timeline_reader(page_->page(), channel::published_word).read().value();
    std::erase_if(retired_, [&](const retired& each) { return published >= each.until; });
  }
}

const channel::member* gpushm_producer::behind(std::uint32_t word, std::uint64_t value) const {
  const auto& all = table_->members();
  const auto at = std::find_if(all.begin(), all.end(), [&](const channel::member& each) {
    return each.mode == channel::consumer_mode::block &&
           !sync::releases(each.word(word).word().load(std::memory_order_seq_cst), value);
  });
  return at == all.end() ? nullptr : &*at;
}

std::optional<gpushm_producer::obstacle> gpushm_producer::find_obstacle(
    const std::optional<channel::producer_table::choice>& what, where on) const {
  if (!what || table_->is_work_full()) {
    for (const channel::member& each : table_->members()) {
      if (each.mode == channel::consumer_mode::share && table_->unreleased(each) != 0) {
        const auto reader = each.word(channel::released_word);
        return obstacle{reader,
                        reader.read().value().value_or(0) + 1,
                        consumers_.at(each.id).words.page,
                        look_at_others};
      }
    }
    if (!what) {  // consumers of the newest hold all slots for a moment
      return obstacle{sync::timeline_reader(page_->page(), channel::announced_word),
                      sync::max_value,
                      page_,
                      look_at_others};
    }
  }
  if (what->after <= table_->last_of_dead() && !lingering_.empty()) {
    const auto& words = lingering_.begin()->second.words;
    return obstacle{sync::timeline_reader(words.page->page(), words.first + channel::released_word),
                    sync::max_value,
                    words.page,
                    look_again};
  }
  for (const std::uint32_t word : {channel::taken_word, channel::released_word}) {
    if (word == channel::released_word && on) {
      break;  // the stream waits
    }
    if (const channel::member* const late = behind(word, what->after)) {
      return obstacle{
          late->word(word), what->after, consumers_.at(late->id).words.page, look_again};
    }
  }
  return std::nullopt;
}

std::optional<gpushm_slot> gpushm_producer::acquire(where on,
                                                    milliseconds timeout,
                                                    const std::stop_token& stop) {
  check_usable("acquire");
  const auto until = base::deadline_after(timeout);
  if (on) {
    static_cast<void>(published_for(*on));  // what can fail fails before anything is changed
  }
  std::unique_lock lock(mutex_);
  if (acquired_) {
    throw error(errc::invalid_argument,
                "acquire",
                name_,
                "a slot is acquired already",
                "publish or abandon it first");
  }
  for (;;) {
    drop_gone();
    const auto what = table_->choose();
    if (const auto late = find_obstacle(what, on)) {
      // Not with the lock held: others join and leave meanwhile.
      const auto now = std::chrono::steady_clock::now();
      if (now >= until || stop.stop_requested()) {
        return std::nullopt;
      }
      const auto next_look = std::min<time_point>(until, now + late->look_again);
      lock.unlock();
      static_cast<void>(sync::wait(late->on, late->value, next_look, stop));
      lock.lock();
      continue;
    }
    if (!table_->claim(*what)) {
      continue;
    }
    if (on) {
      try {
        enqueue_waits(*on, what->after, until, stop);
      } catch (const error& why) {
        table_->abandon(*what);
        if (why.code() == errc::cancelled) {
          return std::nullopt;
        }
        throw;
      } catch (...) {
        table_->abandon(*what);
        throw;
      }
    }
    acquired_ = what;
    auto* const first = static_cast<std::byte*>(slots_->region().data());
    return gpushm_slot{first + what->slot * shape_.slot_stride,
                       shape_.slot_bytes,
                       table_->announced() + 1,
                       what->slot,
                       0};
  }
}

/// Until all consumers that get every item have finished with those up to `after`.
void gpushm_producer::enqueue_waits(CUstream stream,
                                    std::uint64_t after,
                                    time_point until,
                                    const std::stop_token& stop) {
  using gpushm::streams::operation;
  std::array<operation, gpushm::streams::max_operations> waits;
  std::size_t count = 0;
  for (const channel::member& each : table_->members()) {
    if (each.mode != channel::consumer_mode::block ||
        sync::releases(each.word(channel::released_word).word().load(std::memory_order_seq_cst),
                       after)) {
      continue;
    }
    const auto& page = consumers_.at(each.id).words.page;
    const std::uint32_t word = each.first_word + channel::released_word;
    detail::await_stream_turn(stream, page, word, after, base::time_left(until), name_, stop);
    waits[count++] = {operation::kind::wait,
                      page->for_streams().address_for(stream, word, "acquire", name_),
                      after};
    if (count == waits.size()) {
      gpushm::streams::enqueue(stream, waits, name_);
      count = 0;
    }
  }
  gpushm::streams::enqueue(stream, std::span(waits.data(), count), name_);
}

CUdeviceptr gpushm_producer::published_for(CUstream stream) const {
  return page_->for_streams().address_for(stream, channel::published_word, "publish", name_);
}

void gpushm_producer::publish(where on, std::span<const std::byte> metadata) {
  check_usable("publish");
  if (metadata.size() > channel::max_metadata_bytes) {
    throw error(errc::message_too_large,
                "publish",
                name_,
                std::to_string(metadata.size()) + " bytes of metadata",
                "at most " + std::to_string(channel::max_metadata_bytes) + " are allowed");
  }
  const CUdeviceptr address = on ? published_for(*on) : 0;
  const std::lock_guard lock(mutex_);
  if (!acquired_) {
    throw error(errc::invalid_argument,
                "publish",
                name_,
                "no slot is acquired",
                "acquire a slot, and fill it, first");
  }
  const auto what = *acquired_;
  sync::timeline_writer published(page_->own_page(), channel::published_word);
  const bool waits = await_publication(on, table_->announced());
  if (!on) {
    const std::uint64_t number = table_->prepare(what, metadata);
    table_->announce(what);
    acquired_.reset();
    static_cast<void>(published.signal(number));
    return;
  }
  published.use_streams();
  const std::uint64_t number = table_->prepare(what, metadata);
  using gpushm::streams::operation;
  const std::array<operation, 2> both{
      {{operation::kind::wait, address, number - 1}, {operation::kind::store, address, number}}};
  try {
    gpushm::streams::enqueue(*on, std::span(both).subspan(waits ? 0 : 1), name_);
  } catch (...) {
    table_->take_back(what);
    throw;
  }
  table_->announce(what);
  acquired_.reset();
  last_stream_ = on;
}

/// Items are published in the order of their numbers: another stream may still have to publish the
/// one before. True: `on` must wait for it.
bool gpushm_producer::await_publication(where on, std::uint64_t number) {
  // Its handle is another stream in each thread.
  constexpr std::uintptr_t per_thread_stream = 2;
  const sync::timeline_reader published(page_->page(), channel::published_word);
  if ((on && on == last_stream_ && reinterpret_cast<std::uintptr_t>(*on) != per_thread_stream) ||
      sync::releases(published.read().word, number)) {
    return false;
  }
  if (on) {
    detail::await_stream_turn(
        *on, page_, channel::published_word, number, detail::close_limit, name_);
    return true;
  }
  if (sync::wait(published, number, base::deadline_after(detail::close_limit)) ==
      wait_result::timed_out) {
    throw error(errc::timed_out,
                "publish",
                name_,
                "a stream has not published the item before",
                "synchronize that stream first, or publish on it");
  }
  return false;
}

void gpushm_producer::abandon() {
  check_usable("abandon");
  const std::lock_guard lock(mutex_);
  if (acquired_) {
    table_->abandon(*std::exchange(acquired_, std::nullopt));
  }
}

gpushm_producer_stats gpushm_producer::stats() const {
  check_usable("stats");
  const std::lock_guard lock(mutex_);
  gpushm_producer_stats result{};
  result.announced = table_->announced();
  result.published =
      sync::timeline_reader(page_->page(), channel::published_word).read().value().value_or(0);
  result.consumers = static_cast<std::uint32_t>(table_->members().size());
  result.dropped = dropped_;
  result.is_continuation = is_continuation_;
  return result;
}

// ---- consumers ----

/// Whether it belongs to a producer that has closed the channel: it gets nothing of this one.
bool gpushm_producer::has_ended(const channel::member& which) const {
  return sync::is_terminal(which.word(channel::taken_word).read().word) ||
         (former_page_ != 0 && which.word(channel::attached_word).read().word == former_page_);
}

/// A claim names the producer whose words and slots its consumer has open; another one may admit it
/// only if a producer before has done so, because its consumer then continues with the next one;
/// but not if its producer has closed the channel: it ends with that one, also if it does not know
/// yet that it was admitted. A consumer has the page of the last producer that has admitted it, so
/// that page exists.
bool gpushm_producer::is_for_this(const detail::channel_claim& claim,
                                  const channel::member& which) const {
  if (claim.producer == page_->lease().info().generation) {
    return true;
  }
  const auto former = find_former(
      [&](const channel::table_view& each) { return each.start_of(which.id).has_value(); });
  if (!former.table) {
    return false;
  }
  const std::uint64_t attached = which.word(channel::attached_word).read().word;
  const std::uint64_t current = attached != 0 ? attached : claim.producer;
  return !former.table->closed() || current != former.page->lease().info().generation;
}

void gpushm_producer::admit(const std::string& name, std::uint64_t generation) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      if (consumers_.contains(generation) || lingering_.contains(generation)) {
        return;
      }
    }
    auto opened = client_->open_words(name, generation, {});
    const auto claim = detail::decode_claim(opened.lease->metadata());
    channel::member joined;
    joined.id = generation;
    joined.page = &opened.words.page->page();
    joined.first_word = opened.words.first;
    const bool is_valid = describe_consumer(claim, opened.count, joined);
    if (is_valid && !is_for_this(*claim, joined)) {
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
                                consumer{std::move(opened.lease), std::move(opened.words)});
    table_->add(joined);
    if (consumers_.size() >= many_consumers) {
      for (const std::uint32_t word : {channel::announced_word, channel::published_word}) {
        sync::timeline_writer(page_->own_page(), word).expect_many();
      }
    }
  } catch (const std::exception& why) {  // it has left meanwhile, or cannot be opened
    base::log(gpushm::log_level::debug, why.what());
  }
}

void gpushm_producer::admit_present(const std::vector<gpushm::wire::segment>& present) {
  for (const gpushm::wire::segment& each : present) {
    if (each.published && each.backend == gpushm::backend::timeline) {
      admit(each.name, each.generation);
    }
  }
}

void gpushm_producer::admit_consumers() noexcept {
  const std::stop_token stop = stop_.get_token();
  const std::string prefix = names::consumers(name_);
  while (!stop.stop_requested()) {
    try {
      std::vector<gpushm::wire::segment> present;
      detail::subscription_impl events(client_, prefix, &present);
      admit_present(present);
      while (!stop.stop_requested()) {
        const auto got = events.next(std::chrono::hours(1), stop);
        if (!got) {
          continue;
        }
        if (got->kind == gpushm::event_kind::published) {
          admit(got->name, got->generation);
        } else if (got->kind == gpushm::event_kind::resync) {
          admit_present(client_->list(prefix));
        } else if (got->kind == gpushm::event_kind::removed) {
          const std::lock_guard lock(mutex_);
          drop_gone();  // its words have ended
        }
      }
    } catch (const std::exception& why) {  // the broker is gone: the items flow on
      base::log(gpushm::log_level::debug, why.what());
      base::pause_before_retry(reconnect_pause);
    }
  }
}
