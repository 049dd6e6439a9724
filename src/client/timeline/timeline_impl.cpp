// SPDX-License-Identifier: Apache-2.0
#include "client/timeline/timeline_impl.hpp"

#include <utility>

#include "base/files/syscall.hpp"
#include "base/process/deadline.hpp"
#include "base/report/log.hpp"
#include "client/segment/remote_ticket.hpp"
#include "client/timeline/stream_turn.hpp"
#include "sync/cpu_wait.hpp"

namespace {

using gpushm::errc;
using gpushm::error;
using gpushm::cuda::CUstream;
using gpushm::sync::wait_result;
using std::chrono::milliseconds;
namespace client_detail = gpushm::client_detail;
namespace sync = gpushm::sync;

}  // namespace

gpushm_timeline::gpushm_timeline(std::shared_ptr<client_detail::timelines> timelines,
                                 std::shared_ptr<client_detail::segment_lease> lease,
                                 client_detail::timeline_range range,
                                 role role,
                                 std::uint64_t value)
    : timelines_(std::move(timelines)),
      role_(role),
      name_(lease->info().name),
      place_(
          std::make_shared<const client_detail::mapped_place>(std::move(lease), std::move(range))),
      initial_(value),
      signaled_(value) {
  if (is_own()) {
    stores_.emplace(place_.now()->writer(), value);
  }
}

gpushm_timeline::gpushm_timeline(client_detail::timeline_range range,
                                 role role,
                                 gpushm::wire::ticket described)
    : without_broker_(std::move(described)),
      role_(role),
      place_(std::make_shared<const client_detail::mapped_place>(nullptr, std::move(range))),
      initial_(0),
      signaled_(0) {
  if (is_own()) {
    stores_.emplace(place_.now()->writer());
  }
}

gpushm_timeline::~gpushm_timeline() {
  if (gpushm::base::is_forked_child_of(forks_)) {
    place_.leak();
    client_detail::leak(timelines_);
    return;
  }
  {
    const std::unique_lock unused(life_->mutex);
    life_->is_closed = true;
  }
  if (!is_own() || sync::is_terminal(place_.now()->read().word)) {
    return;
  }
  // A store of a stream would overwrite a terminal word, and later the next timeline of the word.
  if (!stores_->wait(gpushm::base::deadline_after(client_detail::close_limit))) {
    gpushm::base::log(gpushm::log_level::warning,
                      "timeline \"" + name_ +
                          "\": closed while a stream still has pending signals; it ends with this "
                          "process (synchronize the stream before closing the timeline)");
    return;
  }
  end_word(sync::word_kind::ended);
}

/// Returns the address of the current word, for a stream.
gpushm::cuda::CUdeviceptr gpushm_timeline::word_address(CUstream stream,
                                                        std::string_view operation) const {
  const client_detail::timeline_range& range = place_.now()->range();
  return range.page->for_streams().address_for(stream, range.first, operation, name_);
}

void gpushm_timeline::await_stores_for(std::string_view operation) {
  if (!stores_->wait(gpushm::base::deadline_after(client_detail::close_limit))) {
    throw error(errc::timed_out,
                operation,
                name_,
                "a stream still has pending signals",
                "synchronize the stream first");
  }
}

/// Ends the timeline. Precondition: no stream will store to it, but for launches of graphs.
void gpushm_timeline::end_word(sync::word_kind kind) noexcept {
  const auto at = place_.now();
  if (timelines_ && !is_captured_) {
    timelines_->pages().end(at->range(), 1, at->lease(), kind);
  } else {
    at->writer().close(kind);
  }
}

// ---- another signaler ----

void gpushm_timeline::check_has_broker(std::string_view operation) const {
  if (!timelines_) {
    throw error(errc::invalid_argument,
                operation,
                name_,
                "this timeline has no broker, which would name its next signaler",
                "use a timeline that was created by a client");
  }
}

gpushm::wire::ticket gpushm_timeline::describe(std::string_view socket_path) const {
  check_usable("export");
  if (!timelines_) {
    return without_broker_;
  }
  if (role_ == role::signaler_for_segment || role_ == role::waiter_of_segment) {
    throw error(errc::invalid_argument,
                "export",
                name_,
                "it belongs to a segment",
                "export the segment, and open its timelines there");
  }
  const auto at = place_.now();
  gpushm::wire::ticket result;
  result.backend = gpushm::backend::timeline;
  result.size_bytes = result.allocated_bytes = sizeof(std::uint64_t);
  result.exporter = gpushm::base::this_process();
  result.broker = client_detail::broker_reference_of(at->lease(), socket_path);
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
  await_stores_for("hand over");
  end_word(sync::word_kind::moved);
  give_up_name();
}

/// Removes the name, which the next signaler creates again: that must not depend on other users of
/// the timeline in this process.
void gpushm_timeline::give_up_name() const noexcept {
  const auto at = place_.now();
  try {
    const gpushm::wire::segment& about = at->lease().info();
    static_cast<void>(
        at->lease().broker()->request(gpushm::wire::remove{about.name, about.generation},
                                      {"hand over", name_},
                                      timelines_->client().request_deadline()));
  } catch (const std::exception& why) {  // closing the timeline frees the name
    gpushm::base::log(gpushm::log_level::info,
                      "timeline \"" + name_ +
                          "\": handed over; its name was not removed: " + std::string(why.what()));
  }
}

gpushm_timeline::place_ptr gpushm_timeline::place_to_wait(milliseconds timeout) const {
  auto at = place_.now();
  if (at->read().kind() != sync::word_kind::moved) {
    return at;
  }
  follow(at, timeout, {});
  return place_.now();
}

std::unique_ptr<gpushm_timeline> gpushm_timeline::take_over(milliseconds timeout,
                                                            const std::stop_token& stop) const {
  check_usable("take over");
  check_has_broker("take over");
  const auto deadline = gpushm::base::deadline_after(timeout);
  const auto at = place_.now();
  const auto result = at->wait(sync::max_value, timeout, stop);
  if (result != wait_result::moved && result != wait_result::ended) {
    throw error(result == wait_result::stopped ? errc::cancelled : errc::timed_out,
                "take over",
                name_,
                "its signaler is alive and has not handed it over",
                "have it call hand_over, or allow more time",
                {.pid = signaler_of(*at)});
  }
  const auto last = at->read().value();
  if (!last) {
    throw_invalid_value("take over");
  }
  return timelines_->take_over(name_, *last, deadline);
}

/// Continues with the timeline of the next signaler, unless `stop` is requested before there is
/// one. Throws gone_or_replaced if there is none in time.
void gpushm_timeline::follow(const place_ptr& place,
                             milliseconds timeout,
                             const std::stop_token& stop) const {
  check_has_broker("wait");
  const auto deadline = gpushm::base::deadline_after(timeout);
  const std::uint64_t last = place->read().value().value_or(0);
  std::string why = "there is no new one";
  do {
    try {
      gpushm::open_options waiting;
      waiting.timeout = gpushm::base::time_left(deadline);
      waiting.stop = stop;
      auto opened = timelines_->open_timelines(name_, 0, waiting);
      if (opened.lease->info().generation != place->lease().info().generation) {
        auto next = std::make_shared<const client_detail::mapped_place>(std::move(opened.lease),
                                                                        std::move(opened.range));
        if (next->read().value().value_or(0) < last) {
          why = "the new one has begun with a smaller value";
          break;
        }
        place_.move(place, std::move(next));
        return;
      }
    } catch (const error& failure) {
      if (failure.code() != errc::no_such_segment && failure.code() != errc::peer_died &&
          failure.code() != errc::timed_out && failure.code() != errc::cancelled) {
        throw;
      }
    }
    gpushm::base::pause_before_retry(milliseconds(1));  // the previous signaler's name is free soon
  } while (std::chrono::steady_clock::now() < deadline && !stop.stop_requested());
  if (stop.stop_requested()) {
    return;
  }
  throw error(errc::gone_or_replaced,
              "wait",
              name_,
              "its signaler has handed it over, and " + why,
              "wait again with more time, or open the name again",
              {.pid = signaler_of(*place), .value = last});
}

// ---- checks ----

void gpushm_timeline::check_usable(std::string_view operation) const {
  client_detail::check_not_forked(forks_, operation, name_);
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
                "count items or steps",
                {.value = value});
  }
}

void gpushm_timeline::check_flags(std::string_view operation, std::uint64_t flags) const {
  if (flags > sync::all_flags) {
    throw error(errc::value_out_of_range,
                operation,
                name_,
                std::to_string(flags) + " has more than 32 bits",
                "use bits 0 to 31",
                {.value = flags});
  }
  if (flags == 0) {
    throw error(errc::invalid_argument,
                operation,
                name_,
                "no flag is set",
                "pass at least one of bits 0 to 31");
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
              "values of a timeline only grow",
              {.value = signaled_});
}

std::int32_t gpushm_timeline::signaler_of(const client_detail::mapped_place& place) const noexcept {
  return timelines_ == nullptr ? without_broker_.exporter.pid : place.signaler();
}

error gpushm_timeline::ended(const client_detail::mapped_place& place,
                             std::string_view operation,
                             std::uint64_t value) const {
  const auto last = place.read().value();
  return {errc::peer_died,
          operation,
          name_,
          "its signaler has ended, or has closed it, " +
              (last ? "after " + std::to_string(*last) : "and its last value is not known") +
              " and before " + std::to_string(value),
          "do not use what depends on that value; open the name again when there is a new signaler",
          {.pid = signaler_of(place), .value = last}};
}

/// Throws if this process's timeline has ended: a broker can end it if this process was stopped for
/// long.
void gpushm_timeline::check_not_ended(std::string_view operation, std::uint64_t value) const {
  const auto at = place_.now();
  if (sync::is_terminal(at->read().word)) {
    throw ended(*at, operation, value);
  }
}

void gpushm_timeline::throw_invalid_value(std::string_view operation) const {
  throw error(errc::protocol_error,
              operation,
              name_,
              "its signaler has stored an invalid value",
              "report this as a bug of that program, or stop it");
}

// ---- CPU ----

std::uint64_t gpushm_timeline::value(std::string_view operation) const {
  check_usable(operation);
  const auto found = place_.now()->read().value();
  if (!found) {
    throw_invalid_value(operation);
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
  check_not_ended("signal", value);
  if (!stores_->can_be_followed()) {
    await_stores_for("signal");
  }
  const auto address = [this](CUstream stream) { return word_address(stream, "signal"); };
  if (!stores_->store(std::nullopt, value, {}, address, "signal", name_)) {
    throw ended(*place_.now(), "signal", value);
  }
  signaled_ = value;
}

void gpushm_timeline::set_flags(std::uint64_t flags) {
  check_own("set flags");
  check_flags("set flags", flags);
  const std::lock_guard lock(mutex_);
  check_kind("set flags", true, has_flags_, signaled_);
  check_not_ended("set flags", flags);
  const auto address = [this](CUstream stream) { return word_address(stream, "set flags"); };
  const auto stored = gpushm::streams::stored_word::flags(flags);
  if (!stores_->store(std::nullopt, stored, {}, address, "set flags", name_)) {
    throw ended(*place_.now(), "set flags", flags);
  }
  has_flags_ = true;
}

bool gpushm_timeline::wait_until(const sync::condition& condition,
                                 milliseconds timeout,
                                 const std::stop_token& stop) const {
  const auto deadline = gpushm::base::deadline_after(timeout);
  for (;;) {
    const auto at = place_.now();
    switch (at->wait(condition, gpushm::base::time_left(deadline), stop)) {
      case wait_result::reached:
        return true;
      case wait_result::timed_out:
      case wait_result::stopped:
        return false;
      case wait_result::invalid:
        static_cast<void>(this->value("wait"));
        return false;  // it is a value now
      case wait_result::ended:
        throw ended(*at, "wait", condition.value);
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

bool gpushm_timeline::try_wait(std::uint64_t value,
                               std::optional<client_detail::watched_timeline>& missing) const {
  check_usable("wait");
  check_value("wait", value);
  const auto at = place_.now();
  switch (at->wait(value, milliseconds(0))) {
    case wait_result::reached:
      return true;
    case wait_result::ended:
      throw ended(*at, "wait", value);
    case wait_result::timed_out:
      missing.emplace(client_detail::watched_timeline{
          {at->range().page->page(), at->range().first}, value, at});
      return false;
    default:
      return false;
  }
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
  const auto now = place_.look();
  if (now.was_released_too_soon) {
    throw error(errc::gone_or_replaced,
                "check",
                name_,
                "it was handed over before it reached a value that a stream waits for",
                "do not use what the streams have done behind that wait; enqueue it again");
  }
  if (now.wants_flags && now.at->read().kind() == sync::word_kind::ended) {
    throw error(errc::peer_died,
                "check",
                name_,
                "its signaler has ended, or has closed it: waits for its flags have no meaning",
                "do not use what the streams have done since the last check",
                {.pid = signaler_of(*now.at)});
  }
  switch (now.at->wait(now.wanted, milliseconds(0))) {
    case wait_result::reached:
      return;
    case wait_result::ended:
      throw ended(*now.at, "check", now.wanted);
    case wait_result::invalid:
      static_cast<void>(value("check"));
      break;
    default:
      break;
  }
  throw error(errc::invalid_argument,
              "check",
              name_,
              std::to_string(now.wanted) + ", for which a stream waits, is not reached yet",
              "synchronize the stream first");
}

void gpushm_timeline::prepare(CUstream stream) const {
  check_usable("prepare");
  static_cast<void>(word_address(stream, "prepare"));
}
