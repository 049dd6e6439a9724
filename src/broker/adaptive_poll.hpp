// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace gpushm::broker_detail {

/// Says how long the event loop looks for more, without sleeping, once it has handled a request. A
/// client that asks one thing after the other then does not wait for this thread to be woken. Where
/// looking finds nothing it is done ever less often, and all of it together takes at most 5 % of a
/// CPU in any second.
///
/// Pure. Distinct objects: safe. Shared objects: unsafe.
class adaptive_poll {
 public:
  using clock = std::chrono::steady_clock;

  /// A client takes 5 to 20 microseconds from an answer to its next request (docs/results).
  static constexpr std::chrono::microseconds longest_look{30};
  /// An exporter that is asked wakes two threads and asks the driver, while its importer maps.
  static constexpr std::chrono::microseconds longest_look_for_exporters{100};
  /// What may be looked in any second: what has been saved up, and what a second adds to it.
  static constexpr std::chrono::milliseconds most_saved{10};
  static constexpr double added_a_second = 0.04;
  /// Requests without a look after looks that found nothing: 1, 3, 7, …
  static constexpr std::uint32_t most_skipped = 255;

  /// What a look comes after. Each has misses of its own: who was given memory maps it first, and
  /// who has released some asks for the next at once.
  enum class after : unsigned char { answer, request_without_answer, question };

  /// `enabled`: false where looking would keep the others of this CPU from running.
  explicit adaptive_poll(bool enabled) noexcept : enabled_(enabled) {}

  /// How long to look now; zero: sleep. Once for each request.
  [[nodiscard]] clock::duration next(after what, clock::time_point now) noexcept {
    if (!enabled_) {
      return clock::duration::zero();
    }
    last_ = what;
    if (misses& of = misses_of(what); of.skip != 0) {
      --of.skip;
      return clock::duration::zero();
    }
    const auto added = std::chrono::duration<double>(now - last_added_) * added_a_second;
    saved_ = std::min<std::chrono::duration<double>>(saved_ + added, most_saved);
    last_added_ = now;
    const clock::duration longest =
        what == after::question ? longest_look_for_exporters : longest_look;
    return saved_ < longest ? clock::duration::zero() : longest;
  }

  /// What that took until there was something, or in all.
  void looked(clock::duration took, bool found) noexcept {
    saved_ -= took;
    misses& of = misses_of(last_);
    of.count = found ? 0 : std::min(2 * of.count + 1, most_skipped);
    of.skip = of.count;
  }

 private:
  struct misses {
    std::uint32_t count = 0;
    std::uint32_t skip = 0;
  };
  [[nodiscard]] misses& misses_of(after what) noexcept {
    switch (what) {
      case after::answer:
        return after_answer_;
      case after::question:
        return after_question_;
      case after::request_without_answer:
        break;
    }
    return after_request_;
  }

  bool enabled_;
  after last_ = after::answer;
  misses after_answer_;
  misses after_request_;
  misses after_question_;
  std::chrono::duration<double> saved_{most_saved};
  clock::time_point last_added_;
};

}  // namespace gpushm::broker_detail
