// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>

#include "succession/descriptor_store/shared_time.hpp"

namespace gpushm::keeper {

/// How long a keeper refuses takeovers after one that has failed. A successor that fails is usually
/// started again at once, and each takeover ends this keeper's program. The pause is a multiple of
/// the time for which the program was away, doubled with each failure, so that clients wait for a
/// small part of the time only: a successor that fails at once can try again at once. In memory
/// that the keeper's processes share: valid if all bytes are 0.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class takeover_pause {
 public:
  using clock = shared_time::clock;
  using milliseconds = std::chrono::milliseconds;

  static constexpr milliseconds longest{300'000};

  /// A takeover begins: the program is ended.
  void begin(clock::time_point now) noexcept { away_since_.set(now); }
  /// The takeover has failed: the program is started again. The pause is `factor` times as long as
  /// it was away; 0: there is none. No effect without `begin`.
  void fail(clock::time_point now, unsigned factor) noexcept {
    if (!away_since_) {
      return;
    }
    if (until_ && now >= until_.get() + 2 * longest) {
      failures_ = 0;
    }
    const auto away = std::chrono::ceil<milliseconds>(now - away_since_.get());
    away_since_.reset();
    const unsigned doublings = std::min(failures_.load(), most_doublings);
    const auto pause = std::min(away, longest) * factor * (1LL << doublings);
    until_.set(now + std::min<milliseconds>(pause, longest));
    failures_ = doublings + 1;
  }
  /// What is left of the pause; nullopt: takeovers are accepted.
  [[nodiscard]] std::optional<milliseconds> left(clock::time_point now) const noexcept {
    if (!until_ || until_.is_past(now)) {
      return std::nullopt;
    }
    return std::chrono::ceil<milliseconds>(until_.get() - now);
  }

 private:
  static constexpr unsigned most_doublings = 16;

  shared_time away_since_;  ///< during a takeover
  shared_time until_;
  std::atomic<unsigned> failures_;  ///< one after another
};

}  // namespace gpushm::keeper
