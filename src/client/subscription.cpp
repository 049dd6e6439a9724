// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "base/log.hpp"
#include "client/client_impl.hpp"
#include "client/subscription_impl.hpp"
#include "gpushm/client.hpp"

namespace gpushm {

namespace detail {

subscription_impl::subscription_impl(std::shared_ptr<client_impl> client, std::string prefix)
    : client_(std::move(client)), prefix_(std::move(prefix)) {
  begin();
}

subscription_impl::~subscription_impl() {
  if (client_->forked()) {
    keep_for_ever(broker_);
    keep_for_ever(client_);
  } else {
    broker_->unsubscribe(number_);
  }
}

void subscription_impl::begin() {
  auto broker = client_->broker();
  number_ = broker->subscribe(prefix_, *this, client_->request_deadline());
  broker_ = std::move(broker);
}

void subscription_impl::deliver(event what) {
  const std::lock_guard lock(mutex_);
  if (unread_.size() >= max_unread_events) {
    unread_.pop_front();
    unread_.front() = event{};  // a resync, in the place of the oldest that is left
  }
  unread_.push_back(std::move(what));
  arrived_.notify_one();
}

void subscription_impl::broker_gone() {
  const std::lock_guard lock(mutex_);
  gone_ = true;
  arrived_.notify_one();
}

std::optional<event> subscription_impl::next(std::chrono::milliseconds timeout,
                                             const std::stop_token& stop) {
  client_->check_usable("subscription", prefix_);
  if (orphaned_) {
    begin();
    orphaned_ = false;
    return event{};  // a resync: whatever happened in between was missed
  }
  std::unique_lock lock(mutex_);
  if (!arrived_.wait_until(
          lock, stop, base::deadline_after(timeout), [&] { return !unread_.empty() || gone_; })) {
    return std::nullopt;
  }
  if (!unread_.empty()) {
    event first = std::move(unread_.front());
    unread_.pop_front();
    return first;
  }
  gone_ = false;
  orphaned_ = true;
  throw error(errc::broker_gone,
              "subscription",
              prefix_,
              "the broker is gone, and the events of its end with it",
              "call next again: it subscribes to the broker's successor");
}

}  // namespace detail

subscription::subscription(std::shared_ptr<detail::subscription_impl> impl) noexcept
    : impl_(std::move(impl)) {}
subscription::subscription(subscription&&) noexcept = default;
subscription& subscription::operator=(subscription&& other) noexcept {
  base::held_log_lines lines;
  impl_ = std::move(other.impl_);
  return *this;
}
subscription::~subscription() {
  base::held_log_lines lines;
  impl_.reset();
}

std::optional<event> subscription::next(std::chrono::milliseconds timeout,
                                        const std::stop_token& stop) {
  base::held_log_lines lines;
  if (!impl_) {
    throw error(errc::invalid_argument,
                "subscription",
                {},
                "this subscription object is empty",
                "subscribe first; a moved-from object is empty");
  }
  return impl_->next(timeout, stop);
}

}  // namespace gpushm
