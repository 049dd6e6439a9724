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

#include "client/answer.hpp"
#include "client/request_lane.hpp"

namespace gpushm::detail {

/// Answers that others receive than those who wait for them: of opens that wait for their names or
/// their exporters, which come on the event lane, and of requests that were sent ahead.
/// Distinct objects: safe. Shared objects: safe.
class late_answers {
 private:
  struct place {
    std::deque<answer> arrived;
    std::atomic<bool> any_arrived{false};  ///< of `arrived`, for who looks without the lock
    std::condition_variable_any changed;
  };

 public:
  /// The answers of one request, from before it is sent: they may come before what says that they
  /// will. Ends with it; what has come by then is dropped. Not movable.
  class waiter {
   public:
    waiter(late_answers& all, std::uint64_t id);
    waiter(const waiter&) = delete;
    waiter& operator=(const waiter&) = delete;
    ~waiter();
    [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
    /// The next one, if it has come.
    [[nodiscard]] std::optional<answer> poll();
    /// Ends it; nobody waits any more for the one answer that is to come on the request lane.
    void abandon() noexcept;
    /// Looks for it for a moment without sleeping: it is expected any time now.
    void look() const noexcept;
    /// The next one. Nothing: `deadline` or `stop` came first, or the connection ended.
    [[nodiscard]] std::optional<answer> next(steady_time deadline,
                                             const std::stop_token& stop = {});

   private:
    [[nodiscard]] std::optional<answer> take();  // with the lock held

    late_answers& all_;
    std::uint64_t id_;
    std::shared_ptr<place> mine_;
  };

  /// False: nobody waits for it any more, and `what` is as before.
  [[nodiscard]] bool deliver(std::uint64_t id, answer& what);
  /// So many answers will still come on the request lane, and nobody waits for them.
  void abandon(std::uint64_t id, std::size_t answers) noexcept;
  /// Some of those are to come still. No lock.
  [[nodiscard]] bool any_abandoned() const noexcept {
    return any_abandoned_.load(std::memory_order_relaxed);
  }
  /// No more will come: whoever waits has what has come so far.
  void end() noexcept;

 private:
  void abandon_locked(std::uint64_t id, std::size_t answers) noexcept;

  std::mutex mutex_;
  bool ended_ = false;
  std::unordered_map<std::uint64_t, std::shared_ptr<place>> waiting_;
  std::unordered_map<std::uint64_t, std::size_t> abandoned_;
  std::atomic<bool> any_abandoned_{false};
};

}  // namespace gpushm::detail
