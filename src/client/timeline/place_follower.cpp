// SPDX-License-Identifier: Apache-2.0
#include "client/timeline/place_follower.hpp"

#include <algorithm>
#include <utility>

#include "base/process/deadline.hpp"
#include "client/lease/segment_lease.hpp"
#include "client/session/fork_guard.hpp"

namespace gpushm::client_detail {

mapped_place::mapped_place(std::shared_ptr<segment_lease> lease, timeline_range range) noexcept
    : lease_(std::move(lease)),
      range_(std::move(range)),
      reader_(range_.page->page(), range_.first) {}

std::int32_t mapped_place::signaler() const noexcept {
  return lease_ == nullptr ? 0 : lease_->info().creator_pid;
}

void mapped_place::latch(const sync::reading& terminal) const noexcept {
  seen_last_.store(terminal.last, std::memory_order_relaxed);
  seen_terminal_.store(terminal.word, std::memory_order_release);
}

sync::reading mapped_place::read() const noexcept {
  if (const std::uint64_t seen = seen_terminal_.load(std::memory_order_acquire); seen != 0) {
    return {seen, seen_last_.load(std::memory_order_relaxed)};
  }
  const sync::reading now = reader_.read();
  if (sync::is_terminal(now.word)) {
    latch(now);
  }
  return now;
}

sync::wait_result mapped_place::wait(const sync::condition& condition,
                                     std::chrono::milliseconds timeout,
                                     const std::stop_token& stop) const noexcept {
  auto result = sync::result_of(read(), condition);
  if (result == sync::wait_result::timed_out && timeout > std::chrono::milliseconds(0)) {
    result = sync::wait(reader_, condition, base::deadline_after(timeout), stop);
    if (result == sync::wait_result::ended || result == sync::wait_result::moved) {
      static_cast<void>(read());  // seen
    }
  }
  return result;
}

place_follower::place_ptr place_follower::now() const {
  const std::lock_guard lock(mutex_);
  return place_;
}

bool place_follower::was_released_too_soon(const mapped_place& left,
                                           std::uint64_t expected,
                                           bool wants_flags) const noexcept {
  return wants_flags || left.read().value().value_or(0) < expected;
}

void place_follower::move(const place_ptr& source, place_ptr next) {
  const std::lock_guard lock(mutex_);
  if (place_ != source) {
    return;
  }
  earlier_.push_back(source);
  too_soon_ = too_soon_ || was_released_too_soon(*source, wanted_, wants_flags_);
  place_ = std::move(next);
}

void place_follower::note(const place_ptr& place, const sync::condition& condition) noexcept {
  const std::lock_guard lock(mutex_);
  if (place_ != place) {
    too_soon_ = too_soon_ || was_released_too_soon(*place, condition.value, condition.any_bit);
  } else if (condition.any_bit) {
    wants_flags_ = true;
  } else {
    wanted_ = std::max(wanted_, condition.value);
  }
}

place_follower::state place_follower::look() {
  const std::lock_guard lock(mutex_);
  const sync::reading now = place_->read();
  too_soon_ = too_soon_ || (now.kind() == sync::word_kind::moved &&
                            was_released_too_soon(*place_, wanted_, wants_flags_));
  const bool too_soon = std::exchange(too_soon_, false);
  if (too_soon) {
    wanted_ = 0;
  }
  return {place_, wanted_, wants_flags_, too_soon};
}

void place_follower::leak() noexcept {
  client_detail::leak(place_);
  for (auto& each : earlier_) {
    client_detail::leak(each);
  }
}

}  // namespace gpushm::client_detail
