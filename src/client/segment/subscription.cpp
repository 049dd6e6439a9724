// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "base/report/log.hpp"
#include "client/segment/client_impl.hpp"
#include "client/segment/subscription_impl.hpp"
#include "gpushm/client.hpp"

namespace gpushm::client_detail {

subscription_impl::subscription_impl(std::shared_ptr<client_impl> client,
                                     std::string prefix,
                                     std::vector<wire::segment>* present)
    : client_(std::move(client)), prefix_(std::move(prefix)) {
  begin(present);
}

subscription_impl::~subscription_impl() {
  if (client_->forked()) {
    leak(broker_);
    leak(client_);
  } else {
    broker_->unsubscribe(number_);
  }
}

void subscription_impl::begin(std::vector<wire::segment>* present) {
  auto broker = client_->broker();
  wire::subscribed first;
  number_ = broker->subscribe(prefix_, *this, first, client_->request_deadline());
  broker_ = std::move(broker);
  if (present != nullptr) {
    *present = std::move(first.segments);
    if (first.more) {
      try {
        client_->list_after(*broker_, prefix_, *present);
      } catch (...) {
        broker_->unsubscribe(number_);
        throw;
      }
    }
  }
}

void subscription_impl::deliver(event news) {
  const std::lock_guard lock(mutex_);
  if (unread_.size() >= max_unread_events) {
    unread_.pop_front();
    unread_.front() = event{};  // a resync replaces the oldest remaining event
  }
  unread_.push_back(std::move(news));
  notify();
}

void subscription_impl::broker_gone() {
  const std::lock_guard lock(mutex_);
  gone_ = true;
  notify();
}

void subscription_impl::notify() {
  arrived_.notify_one();
  if (wakeup_) {
    wakeup_->signal();
  }
}

int subscription_impl::descriptor() {
  client_->check_usable("subscription", prefix_);
  const std::lock_guard lock(mutex_);
  if (!wakeup_) {
    wakeup_.emplace("subscription");
    if (!unread_.empty() || gone_) {
      wakeup_->signal();
    }
  }
  return wakeup_->fd();
}

void subscription_impl::taken() {
  if (wakeup_ && unread_.empty() && !gone_) {
    static_cast<void>(wakeup_->take());
  }
}

std::optional<event> subscription_impl::next(std::chrono::milliseconds timeout,
                                             const std::stop_token& stop) {
  client_->check_usable("subscription", prefix_);
  if (orphaned_) {
    begin(nullptr);
    orphaned_ = false;
    return event{};  // a resync: events in between were lost
  }
  std::unique_lock lock(mutex_);
  if (!arrived_.wait_until(
          lock, stop, base::deadline_after(timeout), [&] { return !unread_.empty() || gone_; })) {
    return std::nullopt;
  }
  if (!unread_.empty()) {
    event first = std::move(unread_.front());
    unread_.pop_front();
    taken();
    return first;
  }
  gone_ = false;
  orphaned_ = true;
  taken();
  throw error(errc::broker_gone,
              "subscription",
              prefix_,
              "the broker is gone; its last events are lost",
              "call next again: it subscribes to the broker's successor");
}

}  // namespace gpushm::client_detail
