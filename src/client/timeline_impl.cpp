// SPDX-License-Identifier: Apache-2.0
#include "client/timeline_impl.hpp"

#include <algorithm>
#include <array>
#include <vector>

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
  if (value <= signaled_) {
    throw_not_larger("signal", value);
  }
  if (sync::timeline_writer(words_.page->own_page(), words_.first).signal(value) ==
      sync::signal_result::closed) {
    throw ended("signal", value);
  }
  signaled_ = value;
}

bool gpushm_timeline::wait(std::uint64_t value,
                           milliseconds timeout,
                           const std::stop_token& stop) const {
  check_usable("wait");
  check_value("wait", value);
  const auto result = timeout <= milliseconds(0)
                          ? sync::try_wait(reader_, value)
                          : sync::wait(reader_, value, gpushm::base::deadline_after(timeout), stop);
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
  throw ended("wait", value);
}

void gpushm_timeline::check() const {
  check_usable("check");
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
  if (gpushm::streams::is_capturing(stream)) {
    gpushm::streams::enqueue_signal(stream, address, value, name_);
    return;
  }
  const std::lock_guard lock(mutex_);
  if (value <= signaled_) {
    throw_not_larger("signal", value);
  }
  sync::timeline_writer(words_.page->own_page(), words_.first).use_streams();
  gpushm::streams::enqueue_signal(stream, address, value, name_);
  signaled_ = on_streams_ = value;
}

void gpushm_timeline::count_wait(CUstream stream, std::uint64_t value, milliseconds timeout) const {
  detail::await_stream_turn(stream, words_.page, words_.first, value, timeout, name_);
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

void gpushm_timeline::batch(CUstream stream,
                            std::span<const gpushm_stream_operation> what,
                            milliseconds timeout) {
  using gpushm::streams::operation;
  std::array<operation, gpushm::streams::max_operations> operations;
  std::vector<gpushm_timeline*> signaled;
  for (std::size_t i = 0; i != what.size(); ++i) {
    gpushm_timeline& on = *what[i].timeline;
    const bool signals = what[i].kind == GPUSHM_STREAM_SIGNAL;
    if (signals) {
      on.check_own("batch");
      signaled.push_back(&on);
    }
    on.check_usable("batch");
    on.check_value("batch", what[i].value);
    operations[i] = {signals ? operation::kind::signal : operation::kind::wait,
                     on.address_for(stream, "batch"),
                     what[i].value};
  }
  const std::span used(operations.data(), what.size());
  if (gpushm::streams::is_capturing(stream)) {
    gpushm::streams::enqueue(stream, used, {});
    return;
  }
  for (const gpushm_stream_operation& each : what) {
    if (each.kind == GPUSHM_STREAM_WAIT) {
      each.timeline->count_wait(stream, each.value, timeout);
    }
  }
  // In one order, for batches of other threads.
  std::sort(signaled.begin(), signaled.end());
  signaled.erase(std::unique(signaled.begin(), signaled.end()), signaled.end());
  std::vector<std::unique_lock<std::mutex>> locks;
  locks.reserve(signaled.size());
  for (gpushm_timeline* each : signaled) {
    locks.emplace_back(each->mutex_);
  }
  for (std::size_t i = 0; i != what.size(); ++i) {
    const auto earlier = std::find_if(
        what.rend() - static_cast<std::ptrdiff_t>(i), what.rend(), [&](const auto& each) {
          return each.kind == GPUSHM_STREAM_SIGNAL && each.timeline == what[i].timeline;
        });
    const std::uint64_t least =
        earlier == what.rend() ? what[i].timeline->signaled_ : earlier->value;
    if (what[i].kind == GPUSHM_STREAM_SIGNAL && what[i].value <= least) {
      what[i].timeline->throw_not_larger("batch", what[i].value);
    }
  }
  for (gpushm_timeline* each : signaled) {
    sync::timeline_writer(each->words_.page->own_page(), each->words_.first).use_streams();
  }
  gpushm::streams::enqueue(stream, used, {});
  for (const gpushm_stream_operation& each : what) {
    if (each.kind == GPUSHM_STREAM_SIGNAL) {
      each.timeline->signaled_ = each.timeline->on_streams_ = each.value;
    } else {
      each.timeline->note_wait(each.value);
    }
  }
}
