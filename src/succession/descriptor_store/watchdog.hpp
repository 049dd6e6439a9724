// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

#include "succession/descriptor_store/shared_time.hpp"

namespace gpushm::keeper {

/// Whether a program that reports (WATCHDOG=1) hangs: it has not reported for the timeout. A
/// program that never reports is not watched. Only time in which the keeper runs is counted: where
/// both were stopped, as a container or a machine can be, the program has as long as before. In
/// memory that the keeper's processes share: valid if all bytes are 0.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class watchdog {
 public:
  using clock = shared_time::clock;
  using milliseconds = std::chrono::milliseconds;

  /// A report. No effect with a timeout of 0.
  void report(clock::time_point now, milliseconds timeout) noexcept {
    if (timeout.count() != 0) {
      looked_at_.set(now);
      hangs_at_.set(now + timeout);
    }
  }
  /// The program has ended.
  void forget() noexcept { hangs_at_.reset(); }

  /// Call after each wait, which may last until `next_look`. More time than that, the keeper did
  /// not run.
  [[nodiscard]] bool finds_hang(clock::time_point now, milliseconds timeout) noexcept {
    if (!hangs_at_) {
      return false;
    }
    const auto late = now - (looked_at_.get() + interval(timeout));
    if (late.count() > 0) {
      hangs_at_.set(hangs_at_.get() + late);
    }
    looked_at_.set(now);
    return hangs_at_.is_past(now);
  }
  /// Empty if the program is not watched.
  [[nodiscard]] std::optional<clock::time_point> next_look(milliseconds timeout) const noexcept {
    if (!hangs_at_) {
      return std::nullopt;
    }
    return std::min<clock::time_point>(hangs_at_.get(), looked_at_.get() + interval(timeout));
  }

 private:
  /// Between two looks: what a stop of both costs the program at most.
  static milliseconds interval(milliseconds timeout) noexcept {
    constexpr milliseconds longest{60'000};
    return std::min(timeout / 4, longest);
  }

  shared_time looked_at_;
  shared_time hangs_at_;
};

}  // namespace gpushm::keeper
