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

#include "base/wakeup.hpp"
#include "client/connection.hpp"

namespace gpushm::detail {

class client_impl;

/// Unread events a subscription keeps; then the oldest go and a resync says so.
inline constexpr std::size_t max_unread_events = 1024;

/// The events of one subscription, across brokers.
/// Distinct objects: safe. Shared objects: `next` from one thread at a time.
class subscription_impl final : public event_sink {
 public:
  /// Subscribes. `present`, unless it is null, gets what is there already. Throws as a request
  /// does.
  subscription_impl(std::shared_ptr<client_impl> client,
                    std::string prefix,
                    std::vector<wire::segment>* present);
  subscription_impl(const subscription_impl&) = delete;
  subscription_impl& operator=(const subscription_impl&) = delete;
  ~subscription_impl() override;

  [[nodiscard]] std::optional<event> next(std::chrono::milliseconds timeout,
                                          const std::stop_token& stop);
  /// Readable while `next` has something to give. Throws too_many_descriptors, system_error.
  [[nodiscard]] int descriptor();

  void deliver(event what) override;
  void broker_gone() override;

 private:
  void begin(std::vector<wire::segment>* present);
  // With the lock.
  void tell();
  void taken();

  std::shared_ptr<client_impl> client_;
  std::string prefix_;
  std::shared_ptr<connection> broker_;
  std::uint64_t number_ = 0;

  std::mutex mutex_;
  std::condition_variable_any arrived_;
  std::optional<base::wakeup> wakeup_;  ///< once somebody has asked for its descriptor
  std::deque<event> unread_;
  bool gone_ = false;      ///< the broker is; not yet told
  bool orphaned_ = false;  ///< told; the next call subscribes anew
};

}  // namespace gpushm::detail
