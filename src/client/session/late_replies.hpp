// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <unordered_map>

#include "client/session/reply.hpp"
#include "client/session/request_lane.hpp"

namespace gpushm::client_detail {

/// Replies that are received by a thread other than the waiting one: those of opens that wait for
/// their names or their exporters, which arrive on the event lane, and those of requests that were
/// sent ahead.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class late_replies {
 private:
  struct place {
    std::deque<reply> arrived;
    std::atomic<bool> any_arrived{false};  ///< `arrived` is not empty; read without the lock
    std::condition_variable_any changed;
  };

 public:
  /// Receives the replies of one request. Create it before the request is sent: replies may arrive
  /// before the `Waiting` that announces them. Its destructor drops unread replies. Not movable.
  class waiter {
   public:
    waiter(late_replies& replies, std::uint64_t id);
    waiter(const waiter&) = delete;
    waiter& operator=(const waiter&) = delete;
    ~waiter();
    [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
    /// Returns the next reply, if it has arrived.
    [[nodiscard]] std::optional<reply> poll();
    /// Ends the wait: the reply that is still to come on the request lane will be dropped.
    void abandon() noexcept;
    /// Spins briefly for a reply that is about to arrive.
    void spin() const noexcept;
    /// Blocks for the next reply. Returns nullopt if `deadline` or `stop` came first, or if the
    /// connection ended.
    [[nodiscard]] std::optional<reply> next(steady_time deadline, const std::stop_token& stop = {});

   private:
    [[nodiscard]] std::optional<reply> take();  // with the lock held

    late_replies& all_;
    std::uint64_t id_;
    std::shared_ptr<place> place_;
  };

  /// Returns false, and leaves `reply` unchanged, if there is no waiter.
  [[nodiscard]] bool deliver(std::uint64_t id, reply& reply);
  /// Registers that this number of replies without a waiter will still come on the request lane.
  void abandon(std::uint64_t id, std::size_t replies) noexcept;
  /// True while such replies are still to come. No lock.
  [[nodiscard]] bool any_abandoned() const noexcept {
    return any_abandoned_.load(std::memory_order_relaxed);
  }
  /// No more replies will arrive: wakes every waiter.
  void end() noexcept;

 private:
  void abandon_locked(std::uint64_t id, std::size_t replies) noexcept;

  std::mutex mutex_;
  bool ended_ = false;
  std::unordered_map<std::uint64_t, std::shared_ptr<place>> waiting_;
  std::unordered_map<std::uint64_t, std::size_t> abandoned_;
  std::atomic<bool> any_abandoned_{false};
};

}  // namespace gpushm::client_detail
