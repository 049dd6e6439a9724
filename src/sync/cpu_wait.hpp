// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <stop_token>

#include "sync/timeline_page.hpp"

namespace gpushm::sync {

enum class wait_result : std::uint8_t {
  reached,  ///< also if the timeline has ended or moved after that
  ended,    ///< before it reached the value
  moved,    ///< before it reached the value: wait on the word of the new signaler
  invalid,  ///< the signaler has stored what is neither a value nor terminal
  timed_out,
  stopped,
};

/// Returns whether a reading meets `condition`, or why it never will.
[[nodiscard]] wait_result result_of(const reading& now, const condition& condition) noexcept;
/// Reads the timeline once, as above. No system call.
[[nodiscard]] wait_result try_wait(const timeline_reader& reader,
                                   const condition& condition) noexcept;

/// A sleep on a word ends after this at the latest: a signal that changes only the upper half of
/// the word, or the first one by a stream, may not wake waiters.
inline constexpr std::chrono::milliseconds longest_sleep{100};

/// Blocks until the timeline meets `condition`, at most until `deadline`, or until `stop` is
/// requested (which it notices within `longest_sleep`). Spins for 20 µs first. Then it sleeps if
/// only CPUs signal the timeline, and else reads it again and again: after pauses of an eighth of
/// the time waited so far, at most 50 µs. One of many waiters does not spin, and pauses for 50 µs;
/// it does so for 2 ms before it sleeps. Precondition: `value` is at most `max_value`.
[[nodiscard]] wait_result wait(const timeline_reader& reader,
                               const condition& condition,
                               std::chrono::steady_clock::time_point deadline,
                               const std::stop_token& stop = {}) noexcept;

}  // namespace gpushm::sync
