// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stop_token>
#include <vector>

#include "client/timeline/timeline_pages.hpp"
#include "sync/cpu_wait.hpp"
#include "sync/timeline_page.hpp"

namespace gpushm::client_detail {

/// The place that a timeline has, or had before a hand-over. A word that was seen terminal stays so
/// for this process: a stream of the ended signaler could still store a value there.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class mapped_place {
 public:
  /// `lease`: null without a broker.
  mapped_place(std::shared_ptr<segment_lease> lease, timeline_range range) noexcept;

  /// Precondition: it has one.
  [[nodiscard]] segment_lease& lease() const noexcept { return *lease_; }
  [[nodiscard]] const timeline_range& range() const noexcept { return range_; }
  /// The signaler's process, as the broker sees it; 0: not known.
  [[nodiscard]] std::int32_t signaler() const noexcept;
  /// Precondition: it is this process's own.
  [[nodiscard]] sync::timeline_writer writer() const noexcept {
    return {range_.page->own_page(), range_.first};
  }
  /// Returns the current word, or the terminal word that was seen first.
  [[nodiscard]] sync::reading read() const noexcept;
  /// As sync::wait; a timeout of 0 makes no system call.
  [[nodiscard]] sync::wait_result wait(const sync::condition& condition,
                                       std::chrono::milliseconds timeout,
                                       const std::stop_token& stop = {}) const noexcept;

 private:
  void latch(const sync::reading& terminal) const noexcept;

  std::shared_ptr<segment_lease> lease_;
  timeline_range range_;
  sync::timeline_reader reader_;
  mutable std::atomic<std::uint64_t> seen_last_{0};
  mutable std::atomic<std::uint64_t> seen_terminal_{0};  ///< 0: none
};

/// Follows a timeline from place to place, and records which waits of this process's streams a
/// hand-over has released.
///
/// Invariant: each wait of a stream is noted with the place whose word the stream reads, which the
/// call that enqueues it has read once. So it makes no difference for `look` whether a hand-over is
/// noticed before, while or after the wait is enqueued.
///
/// Thread-safety: distinct objects: safe; shared objects: safe. No call blocks for long.
class place_follower {
 public:
  using place_ptr = std::shared_ptr<const mapped_place>;

  explicit place_follower(place_ptr first) noexcept : place_(std::move(first)) {}

  [[nodiscard]] place_ptr now() const;
  /// Continues with `next`, unless another thread has already left `source`. The old place stays
  /// mapped as long as this exists: streams may still read it.
  void move(const place_ptr& source, place_ptr next);
  /// Records a wait for `condition` that was enqueued on a stream, at a place that `now` has
  /// returned.
  void note(const place_ptr& place, const sync::condition& condition) noexcept;

  struct state {
    place_ptr at;
    std::uint64_t wanted = 0;  ///< the largest value for which a stream waits
    bool wants_flags = false;
    bool was_released_too_soon = false;  ///< by a hand-over; reported once
  };
  [[nodiscard]] state look();

  /// In a forked child: the places are not destroyed.
  void leak() noexcept;

 private:
  [[nodiscard]] bool was_released_too_soon(const mapped_place& left,
                                           std::uint64_t expected,
                                           bool wants_flags) const noexcept;

  mutable std::mutex mutex_;
  place_ptr place_;
  std::vector<place_ptr> earlier_;
  std::uint64_t wanted_ = 0;
  bool wants_flags_ = false;
  bool too_soon_ = false;
};

}  // namespace gpushm::client_detail
