// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gpushm::sync {

// Sleeping on a word of shared memory (futex(2)). The word may be mapped for reading only, in
// waiters and wakers.

/// Sleeps while the lower half of `word` equals that of `seen`, at most `longest`; may return
/// early.
void sleep_on(const std::atomic<std::uint64_t>& word,
              std::uint64_t seen,
              std::chrono::nanoseconds longest) noexcept;

/// A word to sleep on, as it was read last.
struct sleeping_word {
  const std::atomic<std::uint64_t>* at = nullptr;
  std::uint64_t seen = 0;
};
inline constexpr std::size_t most_sleeping_words = 128;
/// As `sleep_on`, until one of these words differs, at most until `until`. Returns false at once if
/// the kernel cannot do so (futex_waitv(2), since Linux 5.16) or does not let this process.
/// Precondition: 1 to `most_sleeping_words` words.
[[nodiscard]] bool sleep_on_any(std::span<const sleeping_word> words,
                                std::chrono::steady_clock::time_point until) noexcept;

/// Wakes every sleeper of every process.
void wake_all(const std::atomic<std::uint64_t>& word) noexcept;

}  // namespace gpushm::sync
