// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace gpushm::broker_detail {

/// Decides how long the event loop polls, without sleeping, after it has handled a request. A
/// client that sends requests back to back then does not wait for this thread to wake up. Polls
/// that find nothing become less frequent, and all polls together take at most 5 % of a CPU in any
/// second.
///
/// Pure. Thread-safety: distinct objects: safe; shared objects: unsafe.
class adaptive_poll {
 public:
  using clock = std::chrono::steady_clock;

  /// A client takes 5 to 20 µs from a reply to its next request (results/README.md).
  static constexpr std::chrono::microseconds longest_poll{30};
  /// An exporter that gets a question wakes two threads and calls the driver, while its importer
  /// maps.
  static constexpr std::chrono::microseconds longest_poll_for_exporters{100};
  /// Polling time allowed in any second: the saved budget, and what one second adds to it.
  static constexpr std::chrono::milliseconds max_saved{10};
  static constexpr double added_per_second = 0.04;
  /// Upper bound of requests not followed by a poll after polls that found nothing: 1, 3, 7, …
  static constexpr std::uint32_t max_skipped = 255;

  /// The event that precedes a poll. Each has separate misses: a client that gets memory maps it
  /// first, and a client that releases memory sends its next request immediately.
  enum class after : unsigned char { reply, request_without_reply, question };

  /// `enabled`: false where polling would keep other threads off the CPU.
  explicit adaptive_poll(bool enabled) noexcept : enabled_(enabled) {}

  /// Returns how long to poll now; zero: sleep. Call once per request.
  [[nodiscard]] clock::duration next(after outcome, clock::time_point now) noexcept {
    if (!enabled_) {
      return clock::duration::zero();
    }
    last_ = outcome;
    if (misses& of = misses_of(outcome); of.skip != 0) {
      --of.skip;
      return clock::duration::zero();
    }
    const auto added = std::chrono::duration<double>(now - last_added_) * added_per_second;
    saved_ = std::min<std::chrono::duration<double>>(saved_ + added, max_saved);
    last_added_ = now;
    const clock::duration longest =
        outcome == after::question ? longest_poll_for_exporters : longest_poll;
    return saved_ < longest ? clock::duration::zero() : longest;
  }

  /// Reports how long the poll took and whether it found something.
  void polled(clock::duration took, bool success) noexcept {
    saved_ -= took;
    misses& of = misses_of(last_);
    of.count = success ? 0 : std::min(2 * of.count + 1, max_skipped);
    of.skip = of.count;
  }

 private:
  struct misses {
    std::uint32_t count = 0;
    std::uint32_t skip = 0;
  };
  [[nodiscard]] misses& misses_of(after outcome) noexcept {
    switch (outcome) {
      case after::reply:
        return after_reply_;
      case after::question:
        return after_question_;
      case after::request_without_reply:
        break;
    }
    return after_request_;
  }

  bool enabled_;
  after last_ = after::reply;
  misses after_reply_;
  misses after_request_;
  misses after_question_;
  std::chrono::duration<double> saved_{max_saved};
  clock::time_point last_added_;
};

}  // namespace gpushm::broker_detail
