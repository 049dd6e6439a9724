// SPDX-License-Identifier: Apache-2.0
#include "sync/cpu_wait.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <climits>
#include <ctime>

#include "sync/futex.hpp"

namespace gpushm::sync {

namespace {

using clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

/// A signal that is about to come arrives sooner than a thread wakes.
constexpr microseconds spin{20};
constexpr microseconds longest_pause{50};
/// How long many waiters poll before they sleep: longer than a signaler of many items pauses.
constexpr milliseconds poll_of_many{2};

timespec to_timespec(nanoseconds time) noexcept {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  return {static_cast<time_t>(seconds.count()), static_cast<long>((time - seconds).count())};
}

/// futex(2) compares 32 bits. Little-endian: the lower half is at the address of the word.
std::uint32_t* lower_half(const std::atomic<std::uint64_t>& word) noexcept {
  static_assert(std::endian::native == std::endian::little);
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): the kernel only reads it
  return reinterpret_cast<std::uint32_t*>(const_cast<std::atomic<std::uint64_t>*>(&word));
}

void pause_instruction() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

}  // namespace

void sleep_on(const std::atomic<std::uint64_t>& word,
              std::uint64_t seen,
              nanoseconds longest) noexcept {
  const timespec limit = to_timespec(longest);
  ::syscall(SYS_futex,
            lower_half(word),
            FUTEX_WAIT,
            static_cast<std::uint32_t>(seen),
            &limit,
            nullptr,
            0);
}

bool sleep_on_any(std::span<const sleeping_word> words, clock::time_point until) noexcept {
  // The kernel's structure and numbers, which headers before Linux 5.16 lack.
  struct waiter {
    std::uint64_t value;
    std::uint64_t address;
    std::uint32_t flags;
    std::uint32_t reserved;
  };
  constexpr std::uint32_t of_32_bits = 2;
  constexpr long futex_waitv = 449;  // on every architecture
  std::array<waiter, most_sleeping_words> waiters{};
  std::size_t count = 0;
  for (const sleeping_word& each : words) {
    waiters[count++] = {static_cast<std::uint32_t>(each.seen),
                        reinterpret_cast<std::uintptr_t>(lower_half(*each.at)),
                        of_32_bits,
                        0};
  }
  const timespec limit = to_timespec(until.time_since_epoch());
  const long result = ::syscall(futex_waitv, waiters.data(), count, 0, &limit, CLOCK_MONOTONIC);
  return result >= 0 || (errno != ENOSYS && errno != EPERM && errno != EINVAL);
}

void wake_all(const std::atomic<std::uint64_t>& word) noexcept {
  ::syscall(SYS_futex, lower_half(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

wait_result result_of(const reading& now, const condition& condition) noexcept {
  const auto reached = now.value();
  if (!reached) {
    return wait_result::invalid;
  }
  if (condition.is_met_by(*reached)) {
    return wait_result::reached;
  }
  switch (now.kind()) {
    case word_kind::moved:
      return wait_result::moved;
    case word_kind::ended:
      return wait_result::ended;
    default:
      return wait_result::timed_out;
  }
}

wait_result try_wait(const timeline_reader& reader, const condition& condition) noexcept {
  return result_of(reader.read(), condition);
}

wait_result wait(const timeline_reader& reader,
                 const condition& condition,
                 clock::time_point deadline,
                 const std::stop_token& stop) noexcept {
  wait_result result = try_wait(reader, condition);
  if (result != wait_result::timed_out) {
    return result;
  }
  const std::stop_callback waker(stop, [&reader] { reader.wake(); });
  const auto begin = clock::now();
  for (auto now = begin;; now = clock::now()) {
    const std::uint64_t seen = reader.word().load(std::memory_order_relaxed);
    result =
        try_wait(reader, condition);  // after `seen`: a signal in between ends the sleep at once
    if (result != wait_result::timed_out) {
      return result;
    }
    if (stop.stop_requested()) {
      return wait_result::stopped;
    }
    if (now >= deadline) {
      return wait_result::timed_out;
    }
    const bool is_one_of_many = reader.is_waited_for_by_many();
    if (now - begin < spin && !is_one_of_many) {
      pause_instruction();
    } else if (reader.is_signaled_by_streams() || (is_one_of_many && now - begin < poll_of_many)) {
      const nanoseconds usual = is_one_of_many ? longest_pause : (now - begin) / 8;
      const timespec length =
          to_timespec(std::min<nanoseconds>({usual, longest_pause, deadline - now}));
      ::clock_nanosleep(CLOCK_MONOTONIC, 0, &length, nullptr);
    } else {
      sleep_on(reader.word(), seen, std::min<nanoseconds>(longest_sleep, deadline - now));
    }
  }
}

}  // namespace gpushm::sync
