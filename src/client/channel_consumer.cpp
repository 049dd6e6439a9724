// SPDX-License-Identifier: Apache-2.0
#include "client/channel_consumer.hpp"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "base/deadline.hpp"
#include "base/has_gone.hpp"
#include "base/log.hpp"
#include "base/syscall.hpp"
#include "client/channel_claim.hpp"
#include "client/channel_names.hpp"
#include "client/stream_turn.hpp"
#include "client/unique_name.hpp"
#include "streams/stream_operations.hpp"
#include "sync/cpu_wait.hpp"

namespace {

using gpushm::errc;
using gpushm::error;
using gpushm::base::has_gone;
using gpushm::channel::consumer_mode;
using gpushm::channel::consumer_table;
using gpushm::cuda::CUdeviceptr;
using gpushm::cuda::CUstream;
using gpushm::sync::wait_result;
using gpushm::sync::word_kind;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
namespace base = gpushm::base;
namespace channel = gpushm::channel;
namespace detail = gpushm::detail;
namespace names = gpushm::detail::channel_names;
namespace sync = gpushm::sync;

/// Interval at which a wait for a producer's answer looks whether there is another one.
constexpr milliseconds look_again{50};
/// As above, for one that has come and gone; and for a producer that knows the members of the one
/// before: it has admitted them before it can be found.
constexpr milliseconds look_for_pages{1'000};

error invalid_producer(std::string_view operation, std::string_view name) {
  return {errc::protocol_error,
          operation,
          name,
          "the producer has stored what is not possible",
          "report this as a bug of that program, or stop it"};
}

}  // namespace

// ---- begin and end ----

gpushm_consumer::gpushm_consumer(std::shared_ptr<detail::client_impl> client,
                                 std::string_view name,
                                 const options& wanted)
    : client_(std::move(client)),
      name_(name),
      options_(wanted),
      word_count_(channel::first_held_word +
                  (wanted.mode == consumer_mode::latest ? wanted.held : 0)) {
  client_->check_usable("open", name);
  names::check("open", name);
  if (wanted.held > channel::max_held) {
    throw error(errc::invalid_argument,
                "open",
                name,
                "a consumer that holds " + std::to_string(wanted.held) + " items",
                "at most " + std::to_string(channel::max_held) + " are possible");
  }
  join_any(base::deadline_after(wanted.timeout), wanted.stop);
}

/// Joins the producer that there is, or the first one that comes.
void gpushm_consumer::join_any(time_point until, const std::stop_token& stop) {
  for (;;) {
    gpushm::open_options waiting;
    waiting.timeout = base::time_left(until);
    waiting.stop = stop;
    detail::client_impl::opened_words producer;
    try {
      // The name first: nothing is left behind if there is no such channel.
      producer = client_->open_words(names::producer(name_), 0, waiting);
    } catch (const error& why) {
      // A producer that has just ended leaves its name for a moment longer than its page.
      if (!has_gone(why) || steady_clock::now() >= until) {
        throw;
      }
      base::pause_before_retry(milliseconds(1));
      continue;
    }
    if (join(std::move(producer), until, stop)) {
      return;
    }
    base::pause_before_retry(milliseconds(1));
  }
}

namespace {

std::optional<channel::table_view> table_of(const detail::client_impl::opened_words& producer) {
  const auto& page = *producer.words.page;
  return producer.words.first == 0 ? detail::table_in(page) : std::nullopt;
}

}  // namespace

/// False: the producer has ended meanwhile, and its slots are gone.
bool gpushm_consumer::try_open_slots(const channel::table_view& producer) {
  try {
    open_slots(producer);
    return true;
  } catch (const error& why) {
    if (!has_gone(why) || sync::wait(producer.word(channel::announced_word),
                                     sync::max_value,
                                     steady_clock::now() + look_again) != wait_result::ended) {
      throw;
    }
    return false;
  }
}

/// `producer`: its words. As soon as it has admitted this consumer, it may publish, end and exit:
/// so words and slots are opened before, and the claim names this producer, so that no other one
/// admits it. False: it has ended before.
bool gpushm_consumer::join(detail::client_impl::opened_words producer,
                           time_point until,
                           const std::stop_token& stop) {
  const auto table = table_of(producer);
  if (!table) {
    throw invalid_producer("open", name_);
  }
  if (!try_open_slots(*table)) {
    return false;
  }
  const auto request_deadline = client_->request_deadline();
  const auto words = client_->take_words(word_count_, request_deadline);
  {
    const std::lock_guard lock(mutex_);
    words_ = words;
    for (std::uint32_t i = 0; i != word_count_; ++i) {
      own_word(i).reset(0);
    }
    table_.emplace(words_.page->own_page(),
                   words_.first,
                   options_.mode,
                   word_count_ - channel::first_held_word);
  }
  try {
    claim_ = client_->reserve_words(
        detail::unique_name(names::consumers(name_)), words_, word_count_, request_deadline);
  } catch (...) {
    client_->pages().give_back(words_, word_count_);
    throw;
  }
  try {
    const detail::channel_claim claim{
        options_.mode, options_.held, producer.words.page->lease().info().generation};
    claim_->publish(detail::encode(claim), "open", request_deadline);
    const attachment found = attach(until, stop, std::move(producer));
    if (found == attachment::producer_has_ended) {
      client_->pages().end(words_, word_count_, *claim_);
      return false;
    }
    if (found != attachment::done) {
      throw error(stop.stop_requested() ? errc::cancelled : errc::timed_out,
                  "open",
                  name_,
                  "the producer has not answered in time",
                  "see whether its process is stopped, or allow more time");
    }
  } catch (...) {
    client_->pages().end(words_, word_count_, *claim_);
    throw;
  }
  return true;
}

/// The page of the first producer after the one of this consumer that has made it a member, if
/// somebody still has that page: the producer may have closed the channel already.
std::shared_ptr<detail::mapped_page> gpushm_consumer::next_page() const {
  const std::uint64_t last = producer_page_->lease().info().generation;
  auto all = client_->list(names::pages(name_));
  std::erase_if(all, [&](const gpushm::wire::segment& each) {
    return each.backend != gpushm::backend::signals || each.generation <= last ||
           each.creator_uid != slots_->info().creator_uid;
  });
  std::sort(all.begin(), all.end(), [](const auto& left, const auto& right) {
    return left.generation < right.generation;
  });
  for (const gpushm::wire::segment& each : all) {
    try {
      auto page = client_->open_page(each.name, each.generation);
      const auto view = detail::table_in(*page);
      if (view && view->start_of(claim_->info().generation)) {
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

/// `first`: only of this producer. Otherwise: of the next one after that of this consumer.
gpushm_consumer::attachment gpushm_consumer::attach(time_point until,
                                                    const std::stop_token& stop,
                                                    detail::client_impl::opened_words first) {
  const bool has_first = first.words.page != nullptr;
  const std::uint64_t own = claim_->info().generation;
  while (!stop.stop_requested()) {
    const milliseconds left = base::time_left(until);
    auto opened = std::exchange(first, {});
    auto page = opened.words.page;
    try {
      if (!page) {
        page = next_page();
      }
      if (!page) {
        gpushm::open_options waiting;
        waiting.timeout = std::min<milliseconds>(left, look_for_pages);
        waiting.stop = stop;
        opened = client_->open_words(names::producer(name_), 0, waiting);
        page = opened.words.page;
      }
    } catch (const error& why) {
      const bool may_come = has_gone(why);
      if (why.code() == errc::cancelled || (may_come && left <= milliseconds(0))) {
        return attachment::not_in_time;
      }
      if (!may_come) {
        throw;
      }
      base::pause_before_retry(milliseconds(1));
      continue;
    }
    const auto view = opened.words.first == 0 ? detail::table_in(*page) : std::nullopt;
    if (!view) {
      throw invalid_producer("open", name_);
    }
    const sync::timeline_reader changes = view->word(channel::members_word);
    const std::uint64_t producer = page->lease().info().generation;
    if (!has_first && doubtful_.producer != producer) {
      doubtful_ = {producer, steady_clock::now()};
    }
    for (;;) {
      const std::uint64_t seen = changes.read().word;
      const auto entry = view->entry_of(own);
      if (const auto start = view->start_of(own); entry && start) {
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
                      "the producer has dropped this consumer: its words were not valid",
                      "report this as a bug");
        }
        if (!try_open_slots(*view)) {
          break;
        }
        const std::lock_guard lock(mutex_);
        const auto checked = view->within(slots_generation_, slots_->info().size_bytes);
        if (!checked) {
          throw invalid_producer("open", name_);
        }
        producer_lease_ = std::move(opened.lease);
        producer_page_ = page;
        if (!table_->is_attached()) {
          released_ = *start - 1;
          expected_ = *start;
        }
        table_->attach(*checked, *start, *entry, producer);
        return attachment::done;
      }
      if (sync::kind_of(seen) != word_kind::value) {
        break;  // this producer has ended: look for the next one
      }
      const auto now = steady_clock::now();
      if (!has_first && now >= doubtful_.since + look_for_pages) {
        return attachment::is_unknown;
      }
      if (now >= until || stop.stop_requested()) {
        return attachment::not_in_time;
      }
      static_cast<void>(sync::wait(changes, seen + 1, std::min(until, now + look_again), stop));
    }
    if (has_first) {
      return attachment::producer_has_ended;
    }
    if (steady_clock::now() >= until) {
      return attachment::not_in_time;
    }
    base::pause_before_retry(milliseconds(1));  // its name is free soon
  }
  return attachment::not_in_time;
}

void gpushm_consumer::open_slots(const channel::table_view& producer) {
  if (slots_ && slots_generation_ == producer.segment()) {
    return;
  }
  gpushm::open_options reading;
  reading.device = options_.device;
  auto opened = client_->open_generation(name_, producer.segment(), reading);
  if (!producer.within(producer.segment(), opened->info().size_bytes)) {
    throw invalid_producer("open", name_);
  }
  const std::lock_guard lock(mutex_);
  if (streams_read_) {
    former_slots_.push_back(std::move(slots_));
  }
  slots_ = std::move(opened);
  slots_generation_ = producer.segment();
}

gpushm_consumer::~gpushm_consumer() {
  if (base::is_forked_child_of(forks_)) {
    detail::leak(words_.page);
    detail::leak(claim_);
    detail::leak(producer_lease_);
    detail::leak(producer_page_);
    detail::leak(client_);
    return;
  }
  const std::lock_guard lock(mutex_);
  if (!await_releases(base::deadline_after(detail::close_limit))) {
    base::log(gpushm::log_level::warning,
              "channel \"" + name_ +
                  "\": closed before a stream has released what it was given; the producer waits "
                  "until this process ends (synchronize the stream before closing the consumer)");
    client_->pages().keep(words_.page);
    client_->pages().keep(producer_page_);
    detail::leak(claim_);
    return;
  }
  client_->pages().end(words_, word_count_, *claim_);
}

/// Until streams have released what they were given: later stores of theirs would overwrite
/// terminal words. False: not in time.
bool gpushm_consumer::await_releases(time_point until) const {
  if (!streams_release_) {
    return true;
  }
  if (options_.mode != consumer_mode::latest) {
    return sync::wait(own_word(channel::released_word).reader(), released_, until) !=
           wait_result::timed_out;
  }
  const auto is_held = [&](std::uint32_t i) {
    const std::uint32_t word = words_.first + channel::first_held_word + i;
    return words_.page->page().words[word].load(std::memory_order_acquire) != 0 &&
           std::none_of(held_.begin(), held_.end(), [&](const held_item& each) {
             return each.held_word == word;
           });
  };
  for (std::uint32_t i = 0; i != options_.held; ++i) {
    while (is_held(i)) {
      if (steady_clock::now() >= until) {
        return false;
      }
      std::this_thread::yield();
    }
  }
  return true;
}

void gpushm_consumer::check_usable(std::string_view operation) const {
  detail::check_not_forked(forks_, operation, name_);
}

sync::timeline_writer gpushm_consumer::own_word(std::uint32_t index) const {
  return {words_.page->own_page(), words_.first + index};
}

CUdeviceptr gpushm_consumer::own_address(std::uint32_t word, CUstream stream) const {
  return words_.page->for_streams().address_for(stream, word, "release", name_);
}

// ---- items ----

/// Also before the words of another producer are used: whether a stream was given what the one
/// before has not completed.
void gpushm_consumer::note_last_producer() {
  const std::lock_guard lock(mutex_);
  if (!table_->is_attached()) {
    return;
  }
  const sync::reading published = table_->producer().word(channel::published_word).read();
  if (published.kind() != word_kind::value && published.value() < on_streams_) {
    lost_ = true;
    on_streams_ = 0;  // reported once
  }
}

/// A consumer that shares the work counts what it was given by one producer, and one that the next
/// producer does not know has nothing in common with it: it joins that one with other words. It
/// ends the ones that it has had after that: until then the producer knows that there are
/// consumers. False: there was none in time.
bool gpushm_consumer::join_next_producer(time_point until, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  if (!held_.empty()) {
    throw error(errc::too_many_requests,
                "next",
                name_,
                "the producer has died, and this consumer still holds " +
                    std::to_string(held_.size()) + " of its items",
                "release them first");
  }
  if (!await_releases(until)) {
    return false;
  }
  const auto words = words_;
  const auto claim = claim_;
  const auto table = table_;
  lock.unlock();
  try {
    join_any(until, stop);
  } catch (const error& why) {
    lock.lock();
    words_ = words;
    claim_ = claim;
    table_.reset();
    table_.emplace(*table);
    if (why.code() == errc::timed_out || why.code() == errc::cancelled || has_gone(why)) {
      return false;
    }
    throw;
  }
  client_->pages().end(words, word_count_, *claim);
  lock.lock();
  streams_release_ = false;
  on_streams_ = 0;
  return true;
}

/// With the next producer. That one does not know this consumer if broker and keeper have died with
/// the producer before, whose page was not handed back yet when the next one began.
bool gpushm_consumer::go_on(time_point until, const std::stop_token& stop) {
  if (options_.mode != consumer_mode::share) {
    const attachment found = attach(until, stop, {});
    if (found != attachment::is_unknown) {
      return found == attachment::done;
    }
  }
  return join_next_producer(until, stop);
}

/// Waits for what `why` says; false: not in time, or at the end.
bool gpushm_consumer::wait_for_items(consumer_table::outcome why,
                                     time_point until,
                                     const std::stop_token& stop) {
  switch (why) {
    case consumer_table::outcome::taken:
      return true;
    case consumer_table::outcome::not_yet:
      return sync::wait(table_->producer().word(table_->next_word()),
                        table_->next_number(),
                        until,
                        stop) != wait_result::timed_out &&
             !stop.stop_requested();
    case consumer_table::outcome::ending:
      return sync::wait(
                 table_->producer().word(channel::published_word), sync::max_value, until, stop) !=
                 wait_result::timed_out &&
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
        // A next producer does not wait for this consumer: it has other slots.
        own_word(channel::taken_word).close(word_kind::ended);
        return false;
      }
      note_last_producer();
      if (go_on(until, stop)) {
        return true;
      }
      if (stop.stop_requested()) {
        return false;
      }
      throw error(errc::peer_died,
                  "next",
                  name_,
                  "the producer has died, and all its complete items were read",
                  "call again: it continues when there is a new producer");
    case consumer_table::outcome::invalid:
      break;
  }
  throw invalid_producer("next", name_);
}

std::optional<gpushm_consumer::item> gpushm_consumer::take(time_point until,
                                                           const std::stop_token& stop) {
  if (pending_) {
    return std::exchange(pending_, std::nullopt);
  }
  item taken;
  while (!ended_) {
    const auto outcome = table_->take(taken);
    if (outcome == consumer_table::outcome::taken) {
      return taken;
    }
    if (!wait_for_items(outcome, until, stop)) {
      break;
    }
  }
  return std::nullopt;
}

/// False: not in time. Throws peer_died, with the item forgotten, if it never will be.
bool gpushm_consumer::wait_until_complete(where on,
                                          const item& taken,
                                          time_point until,
                                          const std::stop_token& stop) {
  const sync::timeline_reader published = table_->producer().word(channel::published_word);
  if (sync::try_wait(published, taken.number) == wait_result::reached) {
    return true;
  }
  if (on) {
    detail::await_stream_turn(*on,
                              producer_page_,
                              channel::published_word,
                              taken.number,
                              base::time_left(until),
                              name_,
                              stop);
    gpushm::streams::enqueue_wait(
        *on,
        producer_page_->for_streams().address_for(*on, channel::published_word, "next", name_),
        taken.number,
        name_);
    return true;
  }
  const auto result = sync::wait(published, taken.number, until, stop);
  return result == wait_result::reached;
}

gpushm_item gpushm_consumer::describe(const item& taken) const {
  gpushm_item result{};
  const auto* const first = static_cast<const std::byte*>(slots_->region().data());
  result.data = first + taken.offset;
  result.bytes = taken.bytes;
  result.number = taken.number;
  result.index = taken.slot;
  result.metadata_bytes = taken.metadata_bytes;
  std::transform(taken.metadata.begin(),
                 taken.metadata.begin() + taken.metadata_bytes,
                 std::begin(result.metadata),
                 [](std::byte each) { return std::to_integer<unsigned char>(each); });
  return result;
}

std::optional<gpushm_item> gpushm_consumer::next(where on,
                                                 milliseconds timeout,
                                                 const std::stop_token& stop) {
  check_usable("next");
  const auto until = base::deadline_after(timeout);
  const std::lock_guard one_at_a_time(next_mutex_);
  for (;;) {
    const auto taken = take(until, stop);
    if (!taken) {
      return std::nullopt;
    }
    try {
      if (wait_until_complete(on, *taken, until, stop)) {
        const std::lock_guard lock(mutex_);
        held_.push_back({taken->number, taken->held_word, taken->release, false, slots_});
        streams_read_ = streams_read_ || on;
        on_streams_ = on ? std::max(on_streams_, taken->number) : on_streams_;
        auto result = describe(*taken);
        // Also those that a dead producer has announced and not completed.
        result.skipped = taken->number - std::min(taken->number, expected_);
        if (options_.mode == consumer_mode::share) {
          result.skipped = 0;
        }
        expected_ = taken->number + 1;
        return result;
      }
    } catch (const error& why) {
      pending_ = *taken;
      if (why.code() == errc::cancelled) {
        return std::nullopt;
      }
      throw;
    } catch (...) {
      pending_ = *taken;
      throw;
    }
    const auto published = table_->producer().word(channel::published_word).read();
    if (published.kind() == word_kind::value) {
      pending_ = *taken;
      return std::nullopt;
    }
    // The producer died before it was complete: give it back, and look for what comes next.
    if (options_.mode == consumer_mode::latest) {
      words_.page->own_page().words[taken->held_word].store(0, std::memory_order_seq_cst);
    }
  }
}

void gpushm_consumer::release(where on, std::uint64_t number) {
  check_usable("release");
  const std::lock_guard lock(mutex_);
  const auto at = std::find_if(held_.begin(), held_.end(), [&](const held_item& each) {
    return each.number == number && !each.released;
  });
  if (at == held_.end()) {
    throw error(errc::invalid_argument,
                "release",
                name_,
                "this consumer does not hold item " + std::to_string(number),
                "release each item once");
  }
  if (options_.mode == consumer_mode::latest) {
    if (on) {
      gpushm::streams::enqueue_signal(*on, own_address(at->held_word, *on), 0, name_);
      streams_release_ = true;
    } else {
      words_.page->own_page().words[at->held_word].store(0, std::memory_order_seq_cst);
    }
    held_.erase(at);
    return;
  }
  std::uint64_t last = at->release;
  if (at == held_.begin()) {
    for (auto after = std::next(at); after != held_.end() && after->released; ++after) {
      last = after->release;
    }
    auto word = own_word(channel::released_word);
    if (on) {
      const CUdeviceptr address = own_address(words_.first + channel::released_word, *on);
      word.use_streams();
      gpushm::streams::enqueue_signal(*on, address, last, name_);
      streams_release_ = true;
    } else {
      static_cast<void>(word.signal(last));
    }
    released_ = last;
  }
  at->released = true;
  while (!held_.empty() && held_.front().released) {
    held_.pop_front();
  }
}

void gpushm_consumer::check() {
  check_usable("check");
  note_last_producer();
  const std::lock_guard lock(mutex_);
  if (std::exchange(lost_, false)) {
    throw error(errc::peer_died,
                "check",
                name_,
                "the producer died before it had completed an item that a stream was given",
                "do not use what the stream has done with it");
  }
}

bool gpushm_consumer::has_ended() const {
  return ended_.load(std::memory_order_relaxed);
}
