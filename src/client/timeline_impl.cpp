// SPDX-License-Identifier: Apache-2.0
#include "client/timeline_impl.hpp"

#include <utility>

#include "base/deadline.hpp"
#include "base/log.hpp"
#include "base/syscall.hpp"
#include "client/exchange.hpp"
#include "client/stream_turn.hpp"
#include "sync/cpu_wait.hpp"

namespace {

using gpushm::errc;
using gpushm::error;
using gpushm::cuda::CUdeviceptr;
using gpushm::cuda::CUstream;
using gpushm::sync::wait_result;
using std::chrono::milliseconds;
namespace detail = gpushm::detail;
namespace sync = gpushm::sync;

}  // namespace

gpushm_timeline::gpushm_timeline(std::shared_ptr<detail::client_impl> client,
                                 std::shared_ptr<detail::segment_lease> lease,
                                 detail::own_words words,
                                 role as,
                                 std::uint64_t value)
    : client_(std::move(client)),
      role_(as),
      name_(lease->info().name),
      initial_(value),
      signaled_(value) {
  const sync::timeline_reader reader(words.page->page(), words.first);
  place_ = std::make_shared<const place>(place{std::move(lease), std::move(words), reader});
}

gpushm_timeline::gpushm_timeline(detail::own_words words, role as, gpushm::wire::ticket described)
    : without_broker_(std::move(described)), role_(as), initial_(0), signaled_(0) {
  const sync::timeline_reader reader(words.page->page(), words.first);
  place_ = std::make_shared<const place>(place{nullptr, std::move(words), reader});
}

gpushm_timeline::~gpushm_timeline() {
  if (gpushm::base::is_forked_child_of(forks_)) {
    detail::leak(place_);
    for (auto& each : earlier_) {
      detail::leak(each);
    }
    detail::leak(client_);
    return;
  }
  if (!is_own() || sync::is_terminal(place_->reader.read().word)) {
    return;
  }
  if (!await_last_store()) {
    gpushm::base::log(gpushm::log_level::warning,
                      "timeline \"" + name_ +
                          "\": closed before a stream has signaled what it was given; it ends with "
                          "this process (synchronize the stream before closing the timeline)");
    return;
  }
  if (client_) {
    client_->pages().end(place_->words, 1, *place_->lease);
  } else {
    writer().close(sync::word_kind::ended);
  }
}

/// A store of a stream would overwrite the terminal word, and later a value of the next timeline.
bool gpushm_timeline::await_last_store() const {
  return on_streams_ == 0 ||
         sync::wait(place_->reader,
                    on_streams_,
                    gpushm::base::deadline_after(detail::close_limit)) != wait_result::timed_out;
}

std::shared_ptr<const gpushm_timeline::place> gpushm_timeline::now() const {
  const std::lock_guard lock(place_mutex_);
  return place_;
}

sync::timeline_writer gpushm_timeline::writer() const {
  return {place_->words.page->own_page(), place_->words.first};
}

// ---- another signaler ----

void gpushm_timeline::check_has_broker(std::string_view operation) const {
  if (!client_) {
    throw error(errc::invalid_argument,
                operation,
                name_,
                "this timeline has no broker, so nobody knows who signals it next",
                "use a timeline that was created by a client");
  }
}

gpushm::wire::ticket gpushm_timeline::describe(std::string_view socket_path) const {
  check_usable("export");
  if (!client_) {
    return without_broker_;
  }
  if (role_ == role::signaler_for_segment || role_ == role::waiter_of_segment) {
    throw error(errc::invalid_argument,
                "export",
                name_,
                "it belongs to a segment",
                "export the segment, and open its timelines there");
  }
  const auto at = now();
  gpushm::wire::ticket result;
  result.backend = gpushm::backend::timeline;
  result.size_bytes = result.allocated_bytes = sizeof(std::uint64_t);
  result.exporter = gpushm::base::this_process();
  result.broker = detail::broker_reference_of(*at->lease, socket_path);
  return result;
}

void gpushm_timeline::hand_over() {
  check_own("hand over");
  check_has_broker("hand over");
  if (role_ == role::signaler_for_segment) {
    throw error(errc::invalid_argument,
                "hand over",
                name_,
                "it belongs to a segment, whose creator signals it",
                "use a timeline with a name of its own");
  }
  const std::lock_guard lock(mutex_);
  if (!await_last_store()) {
    throw error(errc::timed_out,
                "hand over",
                name_,
                "a stream has not signaled what it was given",
                "synchronize the stream first");
  }
  client_->pages().end(place_->words, 1, *place_->lease, sync::word_kind::moved);
}

/// A word that was handed over meets no wait any more.
void gpushm_timeline::follow_if_moved(milliseconds timeout) const {
  const auto at = now();
  if (at->reader.read().kind() == sync::word_kind::moved) {
    follow(at, timeout, {});
  }
}

std::unique_ptr<gpushm_timeline> gpushm_timeline::take_over(milliseconds timeout,
                                                            const std::stop_token& stop) const {
  check_usable("take over");
  check_has_broker("take over");
  const auto deadline = gpushm::base::deadline_after(timeout);
  const auto at = now();
  const auto result = wait_at(*at, sync::max_value, timeout, stop);
  const auto last = value("take over");
  if (result != wait_result::moved && result != wait_result::ended) {
    throw error(result == wait_result::stopped ? errc::cancelled : errc::timed_out,
                "take over",
                name_,
                "its signaler has not handed it over, and lives",
                "have it call hand_over, or allow more time");
  }
  return client_->continue_timeline(name_, last, deadline);
}

/// Goes on with the word of the next signaler, unless `stop` is requested before there is one.
/// Throws gone_or_replaced if there is none in time.
void gpushm_timeline::follow(const std::shared_ptr<const place>& from,
                             milliseconds timeout,
                             const std::stop_token& stop) const {
  check_has_broker("wait");
  const auto deadline = gpushm::base::deadline_after(timeout);
  const std::uint64_t last = from->reader.read().value().value_or(0);
  std::string why = "there is no new one";
  do {
    try {
      gpushm::open_options waiting;
      waiting.timeout = gpushm::base::time_left(deadline);
      waiting.stop = stop;
      auto opened = client_->open_words(name_, 0, waiting);
      if (opened.lease->info().generation != from->lease->info().generation) {
        const sync::timeline_reader reader(opened.words.page->page(), opened.words.first);
        if (reader.read().value().value_or(0) < last) {
          why = "the new one has begun with a smaller value";
          break;
        }
        const std::lock_guard lock(place_mutex_);
        if (place_ == from) {
          moved_too_soon_ = moved_too_soon_ || last < waited_for_.load(std::memory_order_relaxed) ||
                            streams_wait_for_flags_.load(std::memory_order_relaxed);
          earlier_.push_back(place_);
          place_ = std::make_shared<const place>(
              place{std::move(opened.lease), std::move(opened.words), reader});
        }
        return;
      }
    } catch (const error& failure) {
      if (failure.code() != errc::no_such_segment && failure.code() != errc::peer_died &&
          failure.code() != errc::timed_out && failure.code() != errc::cancelled) {
        throw;
      }
    }
    gpushm::base::pause_before_retry(milliseconds(1));  // the name of the one before is free soon
  } while (std::chrono::steady_clock::now() < deadline && !stop.stop_requested());
  if (stop.stop_requested()) {
    return;
  }
  throw error(errc::gone_or_replaced,
              "wait",
              name_,
              "its signaler has handed it over, and " + why,
              "wait again with more time, or open the name again");
}

// ---- checks ----

void gpushm_timeline::check_usable(std::string_view operation) const {
  detail::check_not_forked(forks_, operation, name_);
}

void gpushm_timeline::check_own(std::string_view operation) const {
  check_usable(operation);
  if (!is_own()) {
    throw error(errc::invalid_argument,
                operation,
                name_,
                "another process signals this timeline",
                "create a timeline of this process, and have the other process wait for it");
  }
}

void gpushm_timeline::check_value(std::string_view operation, std::uint64_t value) const {
  if (value > sync::max_value) {
    throw error(errc::value_out_of_range,
                operation,
                name_,
                std::to_string(value) + " is more than 2^62 - 1",
                "count items or steps");
  }
}

void gpushm_timeline::check_flags(std::string_view operation, std::uint64_t flags) const {
  if (flags > sync::all_flags) {
    throw error(errc::value_out_of_range,
                operation,
                name_,
                std::to_string(flags) + " has more than 32 bits",
                "use bits 0 to 31");
  }
  if (flags == 0) {
    throw error(errc::invalid_argument,
                operation,
                name_,
                "no flag",
                "flags are bits of a number that is not 0: nobody could wait for none");
  }
}

/// A timeline has values that grow, or flags.
void gpushm_timeline::check_kind(std::string_view operation,
                                 bool wants_flags,
                                 bool has_flags,
                                 std::uint64_t signaled) const {
  if (wants_flags ? !has_flags && signaled != initial_ : has_flags) {
    throw error(errc::invalid_argument,
                operation,
                name_,
                has_flags ? "this timeline has flags" : "this timeline has values",
                "use another timeline: one has values or flags, not both");
  }
}

void gpushm_timeline::throw_not_larger(std::string_view operation, std::uint64_t value) const {
  throw error(errc::invalid_argument,
              operation,
              name_,
              std::to_string(value) + " is not more than " + std::to_string(signaled_) +
                  ", which was signaled before",
              "values of a timeline only grow");
}

error gpushm_timeline::ended(std::string_view operation, std::uint64_t value) const {
  const auto last = now()->reader.read().value();
  return {
      errc::peer_died,
      operation,
      name_,
      "its signaler has ended, or has closed it, " +
          (last ? "after " + std::to_string(*last) : "and its last value is not known") +
          " and before " + std::to_string(value),
      "do not use what depends on that value; open the name again when there is a new signaler"};
}

// ---- CPU ----

std::uint64_t gpushm_timeline::value(std::string_view operation) const {
  check_usable(operation);
  const auto found = now()->reader.read().value();
  if (!found) {
    throw error(errc::protocol_error,
                operation,
                name_,
                "its signaler has stored what is not a value",
                "report this as a bug of that program, or stop it");
  }
  return *found;
}

void gpushm_timeline::signal(std::uint64_t value) {
  check_own("signal");
  check_value("signal", value);
  const std::lock_guard lock(mutex_);
  check_kind("signal", false, has_flags_, signaled_);
  if (value <= signaled_) {
    throw_not_larger("signal", value);
  }
  if (writer().signal(value) == sync::signal_result::closed) {
    throw ended("signal", value);
  }
  signaled_ = value;
}

void gpushm_timeline::set_flags(std::uint64_t flags) {
  check_own("set flags");
  check_flags("set flags", flags);
  const std::lock_guard lock(mutex_);
  check_kind("set flags", true, has_flags_, signaled_);
  if (writer().store(flags) == sync::signal_result::closed) {
    throw ended("set flags", flags);
  }
  has_flags_ = true;
}

wait_result gpushm_timeline::wait_at(const place& at,
                                     const sync::condition& wanted,
                                     milliseconds timeout,
                                     const std::stop_token& stop) const {
  return timeout <= milliseconds(0)
             ? sync::try_wait(at.reader, wanted)
             : sync::wait(at.reader, wanted, gpushm::base::deadline_after(timeout), stop);
}

bool gpushm_timeline::wait_until(const sync::condition& wanted,
                                 milliseconds timeout,
                                 const std::stop_token& stop) const {
  const auto deadline = gpushm::base::deadline_after(timeout);
  for (;;) {
    const auto at = now();
    switch (wait_at(*at, wanted, gpushm::base::time_left(deadline), stop)) {
      case wait_result::reached:
        return true;
      case wait_result::timed_out:
      case wait_result::stopped:
        return false;
      case wait_result::invalid:
        static_cast<void>(this->value("wait"));
        return false;  // it is a value now
      case wait_result::ended:
        throw ended("wait", wanted.value);
      case wait_result::moved:
        if (stop.stop_requested()) {
          return false;
        }
        follow(at, gpushm::base::time_left(deadline), stop);
    }
  }
}

bool gpushm_timeline::wait(std::uint64_t value,
                           milliseconds timeout,
                           const std::stop_token& stop) const {
  check_usable("wait");
  check_value("wait", value);
  return wait_until(value, timeout, stop);
}

bool gpushm_timeline::wait_flags(std::uint64_t flags,
                                 milliseconds timeout,
                                 const std::stop_token& stop) const {
  check_usable("wait");
  check_flags("wait", flags);
  return wait_until(sync::condition::any_of(flags), timeout, stop);
}

void gpushm_timeline::check() const {
  check_usable("check");
  const auto at = now();
  const auto kind = at->reader.read().kind();
  const std::uint64_t wanted = waited_for_.load(std::memory_order_relaxed);
  const bool waits_for_flags = streams_wait_for_flags_.load(std::memory_order_relaxed);
  if (kind == sync::word_kind::moved &&
      (waits_for_flags || wait_at(*at, wanted, milliseconds(0), {}) != wait_result::reached)) {
    const std::lock_guard lock(place_mutex_);
    moved_too_soon_ = true;
  }
  {
    const std::lock_guard lock(place_mutex_);
    if (std::exchange(moved_too_soon_, false)) {
      waited_for_.store(0, std::memory_order_relaxed);
      throw error(errc::gone_or_replaced,
                  "check",
                  name_,
                  "its signaler has handed it over before a value was reached for which a stream "
                  "was to wait",
                  "do not use what the streams have done behind that wait; enqueue it again");
    }
  }
  if (waits_for_flags && kind == sync::word_kind::ended) {
    throw error(errc::peer_died,
                "check",
                name_,
                "its signaler has ended, or has closed it: no wait for its flags has a meaning "
                "after that",
                "do not use what the streams have done since the last check");
  }
  switch (wait_at(*at, wanted, milliseconds(0), {})) {
    case wait_result::reached:
      return;
    case wait_result::ended:
      throw ended("check", wanted);
    case wait_result::invalid:
      static_cast<void>(value("check"));
      break;
    default:
      break;
  }
  throw error(errc::invalid_argument,
              "check",
              name_,
              std::to_string(wanted) + ", for which a stream waits, is not reached yet",
              "synchronize the stream first");
}

// ---- streams ----

CUdeviceptr gpushm_timeline::address_for(CUstream stream, std::string_view operation) const {
  const auto at = now();
  return at->words.page->for_streams().address_for(stream, at->words.first, operation, name_);
}

void gpushm_timeline::prepare(CUstream stream) const {
  check_usable("prepare");
  static_cast<void>(address_for(stream, "prepare"));
}

void gpushm_timeline::signal_on(CUstream stream, std::uint64_t value) {
  check_own("signal");
  check_value("signal", value);
  const CUdeviceptr address = address_for(stream, "signal");
  if (gpushm::streams::is_capturing(stream)) {
    writer().use_streams();
    gpushm::streams::enqueue_signal(stream, address, value, name_);
    return;
  }
  const std::lock_guard lock(mutex_);
  check_kind("signal", false, has_flags_, signaled_);
  if (value <= signaled_) {
    throw_not_larger("signal", value);
  }
  writer().use_streams();
  gpushm::streams::enqueue_signal(stream, address, value, name_);
  signaled_ = on_streams_ = value;
}

void gpushm_timeline::count_wait(CUstream stream,
                                 const sync::condition& wanted,
                                 milliseconds timeout) const {
  const auto at = now();
  detail::await_stream_turn(stream, at->words.page, at->words.first, wanted, timeout, name_);
}

void gpushm_timeline::note_wait(std::uint64_t value) const noexcept {
  std::uint64_t known = waited_for_.load(std::memory_order_relaxed);
  while (known < value &&
         !waited_for_.compare_exchange_weak(known, value, std::memory_order_relaxed)) {
  }
}

void gpushm_timeline::wait_on(CUstream stream, std::uint64_t value, milliseconds timeout) const {
  check_usable("wait");
  check_value("wait", value);
  follow_if_moved(timeout);
  const CUdeviceptr address = address_for(stream, "wait");
  if (!gpushm::streams::is_capturing(stream)) {
    count_wait(stream, value, timeout);
    note_wait(value);
  }
  gpushm::streams::enqueue_wait(stream, address, value, name_);
}
