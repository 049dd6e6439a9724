// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace gpushm::sync {

// Sleeping on a word of shared memory (futex(2)). The word may be mapped for reading only, in
// waiters and wakers.

/// Sleeps while the lower half of `word` equals that of `seen`, at most `longest`; may return
/// early.
void sleep_on(const std::atomic<std::uint64_t>& word,
              std::uint64_t seen,
              std::chrono::nanoseconds longest) noexcept;
/// Wakes every sleeper of every process.
void wake_all(const std::atomic<std::uint64_t>& word) noexcept;

}  // namespace gpushm::sync
