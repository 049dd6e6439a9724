// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace gpushm::succession {

/// What the last notifications of a domain say about its keeper.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class keeper_health {
 public:
  using clock = std::chrono::steady_clock;
  enum class state : std::uint8_t { reads, slow, full, gone };
  /// Without room in its queue for longer than this, it is slow.
  static constexpr std::chrono::milliseconds patience{1'000};
  /// It reports that it is full once for all senders, so that counts for a while.
  static constexpr std::chrono::seconds memory_of_full{60};

  [[nodiscard]] state now() const noexcept {
    const clock::rep refused = refused_since_.load(std::memory_order_relaxed);
    if (is_gone_.load(std::memory_order_relaxed)) {
      return state::gone;
    }
    if (refused != 0 && clock::now() - time_of(refused) >= patience) {
      return state::slow;
    }
    const clock::rep full = full_since_.load(std::memory_order_relaxed);
    return full != 0 && clock::now() - time_of(full) < memory_of_full ? state::full : state::reads;
  }
  [[nodiscard]] bool is_gone() const noexcept { return is_gone_.load(std::memory_order_relaxed); }

  /// A notification was sent; `accepted` false: its queue has no room.
  void sent(bool accepted) noexcept {
    if (accepted) {
      refused_since_.store(0, std::memory_order_relaxed);
    } else {
      clock::rep none = 0;
      refused_since_.compare_exchange_strong(
          none, clock::now().time_since_epoch().count(), std::memory_order_relaxed);
    }
  }
  void is_full() noexcept {
    full_since_.store(clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  }
  /// Returns whether this is the first time.
  [[nodiscard]] bool has_gone() noexcept { return !is_gone_.exchange(true); }

 private:
  static clock::time_point time_of(clock::rep since) noexcept {
    return clock::time_point(clock::duration(since));
  }
  std::atomic<bool> is_gone_ = false;
  std::atomic<clock::rep> refused_since_ = 0;  ///< 0: accepted
  std::atomic<clock::rep> full_since_ = 0;     ///< 0: never
};

}  // namespace gpushm::succession
