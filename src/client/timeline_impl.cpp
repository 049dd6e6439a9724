// SPDX-License-Identifier: Apache-2.0
#include "client/timeline_impl.hpp"

#include "base/deadline.hpp"
#include "base/log.hpp"
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
                                 bool is_own)
    : client_(std::move(client)),
      lease_(std::move(lease)),
      words_(std::move(words)),
      is_own_(is_own),
      name_(lease_->info().name),
      reader_(words_.page->page(), words_.first) {}

gpushm_timeline::~gpushm_timeline() {
  if (gpushm::base::is_forked_child_of(forks_)) {
    detail::leak(words_.page);
    detail::leak(lease_);
    detail::leak(client_);
    return;
  }
  if (!is_own_) {
    return;
  }
  // A store of a stream would overwrite the terminal word, and later a value of the next timeline.
  if (on_streams_ != 0 &&
      sync::wait(reader_, on_streams_, gpushm::base::deadline_after(detail::close_limit)) ==
          wait_result::timed_out) {
    gpushm::base::log(gpushm::log_level::warning,
                      "timeline \"" + name_ +
                          "\": closed before a stream has signaled what it was given; it ends with "
                          "this process (synchronize the stream before closing the timeline)");
    return;
  }
  client_->pages().end(words_, 1, *lease_);
}

// ---- checks ----

void gpushm_timeline::check_usable(std::string_view operation) const {
  detail::check_not_forked(forks_, operation, name_);
}

void gpushm_timeline::check_own(std::string_view operation) const {
  check_usable(operation);
  if (!is_own_) {
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
  check_value(operation, flags);
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
  if (wants_flags ? !has_flags && signaled != 0 : has_flags) {
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
  const auto last = reader_.read().value();
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
  const auto found = reader_.read().value();
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
  if (sync::timeline_writer(words_.page->own_page(), words_.first).signal(value) ==
      sync::signal_result::closed) {
    throw ended("signal", value);
  }
  signaled_ = value;
}

void gpushm_timeline::set_flags(std::uint64_t flags) {
  check_own("set flags");
  check_flags("set flags", flags);
  const std::lock_guard lock(mutex_);
  check_kind("set flags", true, has_flags_, signaled_);
  if (sync::timeline_writer(words_.page->own_page(), words_.first).store(flags) ==
      sync::signal_result::closed) {
    throw ended("set flags", flags);
  }
  has_flags_ = true;
}

bool gpushm_timeline::wait_until(const sync::condition& wanted,
                                 milliseconds timeout,
                                 const std::stop_token& stop) const {
  const auto result =
      timeout <= milliseconds(0)
          ? sync::try_wait(reader_, wanted)
          : sync::wait(reader_, wanted, gpushm::base::deadline_after(timeout), stop);
  switch (result) {
    case wait_result::reached:
      return true;
    case wait_result::timed_out:
    case wait_result::stopped:
      return false;
    case wait_result::invalid:
      static_cast<void>(this->value("wait"));
      return false;  // it is a value now
    case wait_result::ended:
    case wait_result::moved:
      break;
  }
  throw ended("wait", wanted.value);
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
  if (streams_wait_for_flags_.load(std::memory_order_relaxed) &&
      reader_.read().kind() != sync::word_kind::value) {
    throw error(errc::peer_died,
                "check",
                name_,
                "its signaler has ended, or has closed it: no wait for its flags has a meaning "
                "after that",
                "do not use what the streams have done since the last check");
  }
  const std::uint64_t wanted = waited_for_.load(std::memory_order_relaxed);
  if (wait(wanted, milliseconds(0), {})) {
    return;
  }
  throw error(errc::invalid_argument,
              "check",
              name_,
              std::to_string(wanted) + ", for which a stream waits, is not reached yet",
              "synchronize the stream first");
}

// ---- streams ----

CUdeviceptr gpushm_timeline::address_for(CUstream stream, std::string_view operation) const {
  return words_.page->for_streams().address_for(stream, words_.first, operation, name_);
}

void gpushm_timeline::prepare(CUstream stream) const {
  check_usable("prepare");
  static_cast<void>(address_for(stream, "prepare"));
}

void gpushm_timeline::signal_on(CUstream stream, std::uint64_t value) {
  check_own("signal");
  check_value("signal", value);
  const CUdeviceptr address = address_for(stream, "signal");
  sync::timeline_writer writer(words_.page->own_page(), words_.first);
  if (gpushm::streams::is_capturing(stream)) {
    writer.use_streams();
    gpushm::streams::enqueue_signal(stream, address, value, name_);
    return;
  }
  const std::lock_guard lock(mutex_);
  check_kind("signal", false, has_flags_, signaled_);
  if (value <= signaled_) {
    throw_not_larger("signal", value);
  }
  writer.use_streams();
  gpushm::streams::enqueue_signal(stream, address, value, name_);
  signaled_ = on_streams_ = value;
}

void gpushm_timeline::count_wait(CUstream stream,
                                 const sync::condition& wanted,
                                 milliseconds timeout) const {
  detail::await_stream_turn(stream, words_.page, words_.first, wanted, timeout, name_);
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
  const CUdeviceptr address = address_for(stream, "wait");
  if (!gpushm::streams::is_capturing(stream)) {
    count_wait(stream, value, timeout);
    note_wait(value);
  }
  gpushm::streams::enqueue_wait(stream, address, value, name_);
}
