// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string_view>
#include <utility>
#include <vector>

#include "client/session/fork_guard.hpp"
#include "gpushm/error.hpp"
#include "sync/cpu_wait.hpp"
#include "sync/futex.hpp"
#include "sync/timeline_page.hpp"

namespace gpushm::client_detail {

/// The condition that a call without a wait has found unmet.
struct watched_timeline {
  sync::timeline_reader on;
  sync::condition wanted;
  std::shared_ptr<const void> keep;  ///< what `on` reads
  /// When the call may succeed without a change of the word.
  std::chrono::steady_clock::time_point look_again = std::chrono::steady_clock::time_point::max();
};

/// Watches timelines for event loops: one thread sleeps on all of them (futex_waitv(2); where the
/// kernel lacks it or refuses it, or for more words than it takes, the thread looks each
/// millisecond). Words that streams signal are read again and again, as by sync::wait, with pauses
/// of at most a millisecond.
///
/// Thread-safety: shared objects: safe; one thread at a time calls `wait`.
class timeline_poller {
 public:
  timeline_poller() = default;
  timeline_poller(const timeline_poller&) = delete;
  timeline_poller& operator=(const timeline_poller&) = delete;
  /// Precondition: not in a forked child (leak it there).
  ~timeline_poller() = default;

  [[nodiscard]] bool is_of_parent() const noexcept { return is_forked_child_of(forks_); }
  void check_usable(std::string_view operation) const {
    check_not_forked(forks_, operation, "poller");
  }
  /// Replaces the watch of this key. It is due when `timeline` would not wait, when `stop` is
  /// requested, or when the timeline has ended.
  void watch(std::uint64_t key, watched_timeline timeline, const std::stop_token& stop);
  void remove(std::uint64_t key);
  /// Blocks until a watch is due, until `deadline`, or until `wake` was called. Returns how many
  /// keys it has written to `due`, the smallest first; their watches are removed.
  [[nodiscard]] std::size_t wait(std::span<std::uint64_t> due,
                                 std::chrono::steady_clock::time_point deadline);
  void wake() noexcept;

 private:
  using time_point = std::chrono::steady_clock::time_point;
  /// Does not lock: the objects that it refers to are destroyed after it has returned.
  struct request {
    timeline_poller* of;
    std::atomic<bool>* is_stopped;
    void operator()() const noexcept {
      is_stopped->store(true);
      of->notify();
    }
  };
  struct entry {
    entry(watched_timeline&& watched, time_point begin) noexcept
        : what(std::move(watched)), since(begin) {}

    watched_timeline what;
    time_point since;
    std::atomic<bool> is_stopped{false};
    std::optional<std::stop_callback<request>> on_stop;

    [[nodiscard]] bool is_due(time_point now) const noexcept {
      return is_stopped.load() || now >= what.look_again ||
             sync::try_wait(what.on, what.wanted) != sync::wait_result::timed_out;
    }
  };
  /// The result of a look at all words.
  struct finding {
    std::size_t due = 0;
    std::size_t words = 0;  ///< of `sleep_`, to sleep on
    time_point next_look;
  };

  void notify() noexcept {
    wakes_.fetch_add(1);
    sync::wake_all(wakes_);
  }
  [[nodiscard]] finding look(std::span<std::uint64_t> due,
                             time_point now,
                             std::vector<std::unique_ptr<entry>>& ended);
  void add_sleep(finding& finding, const entry& entry, std::uint64_t seen, time_point now) noexcept;
  void sleep_on_words(std::uint64_t wakes, const finding& finding, time_point now) noexcept;

  const std::uint64_t forks_ = fork_count();
  std::mutex mutex_;
  std::map<std::uint64_t, std::unique_ptr<entry>> watches_;
  std::atomic<std::uint64_t> wakes_{0};  ///< changes whenever the thread must look again
  std::atomic<bool> is_woken_{false};

  // Used only by the thread that waits.
  std::array<sync::sleeping_word, sync::most_sleeping_words> sleep_{};
  bool can_sleep_on_many_ = true;
};

}  // namespace gpushm::client_detail

/// The handle of the C interface.
struct gpushm_poller {
  std::shared_ptr<gpushm::client_detail::timeline_poller> impl;
};

namespace gpushm::client_detail {

/// Throws `errc::invalid_argument` for null.
[[nodiscard]] inline timeline_poller& filled_poller(const gpushm_poller* poller) {
  if (poller == nullptr) {
    throw error(errc::invalid_argument,
                "poller",
                {},
                "this poller object is empty",
                "create a poller first");
  }
  return *poller->impl;
}

}  // namespace gpushm::client_detail
