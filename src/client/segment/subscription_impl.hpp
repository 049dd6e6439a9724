// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/process/wakeup.hpp"
#include "client/session/connection.hpp"

namespace gpushm::client_detail {

class client_impl;

/// Upper bound of unread events per subscription; beyond it the oldest are dropped and a resync
/// reports it.
inline constexpr std::size_t max_unread_events = 1024;

/// The events of one subscription, across brokers.
///
/// Thread-safety: distinct objects: safe; shared objects: `next` from one thread at a time.
class subscription_impl final : public event_sink {
 public:
  /// Subscribes. `present`, unless null, receives the existing segments. Throws as a request.
  subscription_impl(std::shared_ptr<client_impl> client,
                    std::string prefix,
                    std::vector<wire::segment>* present);
  subscription_impl(const subscription_impl&) = delete;
  subscription_impl& operator=(const subscription_impl&) = delete;
  ~subscription_impl() override;

  [[nodiscard]] std::optional<event> next(std::chrono::milliseconds timeout,
                                          const std::stop_token& stop);
  /// Readable when `next` would return something. Throws too_many_descriptors, system_error.
  [[nodiscard]] int descriptor();

  void deliver(event news) override;
  void broker_gone() override;

 private:
  void begin(std::vector<wire::segment>* present);
  // Called with the lock held.
  void notify();
  void taken();

  std::shared_ptr<client_impl> client_;
  std::string prefix_;
  std::shared_ptr<connection> broker_;
  std::uint64_t number_ = 0;

  std::mutex mutex_;
  std::condition_variable_any arrived_;
  std::optional<base::wakeup> wakeup_;  ///< created by the first call of `descriptor`
  std::deque<event> unread_;
  bool gone_ = false;      ///< the broker is gone; not yet reported
  bool orphaned_ = false;  ///< reported; the next call subscribes again
};

}  // namespace gpushm::client_detail
