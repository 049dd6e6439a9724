// SPDX-License-Identifier: Apache-2.0
#include "client/session/late_replies.hpp"

#include <chrono>
#include <utility>

namespace gpushm::client_detail {

late_replies::waiter::waiter(late_replies& replies, std::uint64_t id)
    : all_(replies), id_(id), place_(std::make_shared<place>()) {
  const std::lock_guard lock(all_.mutex_);
  all_.waiting_.emplace(id, place_);
}

late_replies::waiter::~waiter() {
  const std::lock_guard lock(all_.mutex_);
  all_.waiting_.erase(id_);
}

void late_replies::waiter::abandon() noexcept {
  const std::lock_guard lock(all_.mutex_);
  all_.waiting_.erase(id_);
  if (place_->arrived.empty()) {
    all_.abandon_locked(id_, 1);
  }
}

std::optional<reply> late_replies::waiter::poll() {
  const std::lock_guard lock(all_.mutex_);
  return take();
}

void late_replies::waiter::spin() const noexcept {
  constexpr std::chrono::microseconds moment{30};  // shorter than sleeping and waking
  const auto end = std::chrono::steady_clock::now() + moment;
  while (!place_->any_arrived.load(std::memory_order_relaxed) &&
         std::chrono::steady_clock::now() < end) {
  }
}

std::optional<reply> late_replies::waiter::next(steady_time deadline, const std::stop_token& stop) {
  std::unique_lock lock(all_.mutex_);
  static_cast<void>(place_->changed.wait_until(
      lock, stop, deadline, [&] { return !place_->arrived.empty() || all_.ended_; }));
  return take();
}

std::optional<reply> late_replies::waiter::take() {
  if (place_->arrived.empty()) {
    return std::nullopt;
  }
  reply first = std::move(place_->arrived.front());
  place_->arrived.pop_front();
  place_->any_arrived.store(!place_->arrived.empty(), std::memory_order_relaxed);
  return first;
}

bool late_replies::deliver(std::uint64_t id, reply& reply) {
  const std::lock_guard lock(mutex_);
  const auto at = waiting_.find(id);
  if (at == waiting_.end()) {
    if (const auto left = abandoned_.find(id); left != abandoned_.end() && --left->second == 0) {
      abandoned_.erase(left);
      any_abandoned_.store(!abandoned_.empty(), std::memory_order_relaxed);
    }
    return false;
  }
  at->second->arrived.push_back(std::move(reply));
  at->second->any_arrived.store(true, std::memory_order_relaxed);
  at->second->changed.notify_one();
  return true;
}

void late_replies::abandon(std::uint64_t id, std::size_t replies) noexcept {
  const std::lock_guard lock(mutex_);
  abandon_locked(id, replies);
}

void late_replies::abandon_locked(std::uint64_t id, std::size_t replies) noexcept {
  if (replies == 0) {
    return;
  }
  try {
    abandoned_[id] += replies;
    any_abandoned_.store(true, std::memory_order_relaxed);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the next turn drops them
  }
}

void late_replies::end() noexcept {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  for (const auto& [id, each] : waiting_) {
    each->changed.notify_all();
  }
}

}  // namespace gpushm::client_detail
