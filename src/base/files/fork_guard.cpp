// SPDX-License-Identifier: Apache-2.0
#include "base/files/fork_guard.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <limits>
#include <mutex>
#include <string>
#include <utility>

#include "base/files/device_files.hpp"
#include "base/files/page_size.hpp"
#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"

namespace gpushm::base {

namespace {

using std::chrono::milliseconds;
using clock = std::chrono::steady_clock;

/// How long a fork waits for open sections, and a section for forks in progress.
constexpr milliseconds fork_waits{500};
constexpr milliseconds section_waits{1'000};

// ---- the descriptors ----

constexpr unsigned word_bits = std::numeric_limits<std::uint64_t>::digits;
/// Descriptors per block of the bitmap, which has 64 KiB.
constexpr std::size_t block_bits = std::size_t{1} << 19U;
constexpr std::size_t block_words = block_bits / word_bits;
constexpr std::size_t block_count = (std::size_t{1} << 31U) / block_bits;

using block = std::array<std::atomic<std::uint64_t>, block_words>;

/// Constant-initialised, never destroyed: usable before and after the lifetime of static objects.
/// Pages that are never written use no memory.
struct fork_state {
  block first_block{};
  std::array<std::atomic<block*>, block_count> other_blocks{};
  std::atomic<std::size_t> used_words{0};  // no bit is set in words from here on

  std::atomic<std::uint64_t> generation{1};
  std::atomic<int> sections{0};
  std::atomic<int> forks{0};  // in progress

  std::mutex forking;                  // locked from before a fork until after it
  fork_safe_mutex* mutexes = nullptr;  // guarded by forking

  // The life pipe, and the descriptor that replaces driver files in children; -1: none.
  std::atomic<int> life{-1};
  std::atomic<int> life_writer{-1};
  std::atomic<int> null{-1};

  // The mark, which the kernel clears in a child; `never_cleared` if it cannot.
  std::atomic<std::uint32_t> never_cleared{1};
  std::atomic<std::atomic<std::uint32_t>*> mark{&never_cleared};
};
constinit fork_state state;

// Values of the mark.
constexpr std::uint32_t cleared_by_kernel = 0;
constexpr std::uint32_t this_process = 1;
constexpr std::uint32_t being_set = 2;

block* block_of(std::size_t fd) noexcept {
  const std::size_t index = fd / block_bits;
  return index == 0 ? &state.first_block
                    : state.other_blocks.at(index).load(std::memory_order_acquire);
}

block& make_block(std::size_t fd) {
  if (block* const existing = block_of(fd)) {
    return *existing;
  }
  void* const memory =
      ::mmap(nullptr, sizeof(block), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {  // NOLINT(performance-no-int-to-ptr): the system's macro
    throw_errno(ENOMEM, "open", "descriptor " + std::to_string(fd), "mmap");
  }
  auto* const created = new (memory) block;  // NOLINT(cppcoreguidelines-owning-memory): never freed
  block* expected = nullptr;
  if (!state.other_blocks.at(fd / block_bits)
           .compare_exchange_strong(expected, created, std::memory_order_acq_rel)) {
    ::munmap(memory, sizeof(block));
    return *expected;
  }
  return *created;
}

void close_all_of(block& block, std::size_t first_fd, std::size_t words) noexcept {
  for (std::size_t word = 0; word < words; ++word) {
    // NOLINTNEXTLINE(cppcoreguidelines-pro-bounds-constant-array-index): word < block_words
    for (std::uint64_t bits = block[word].exchange(0, std::memory_order_relaxed); bits != 0;
         bits &= bits - 1) {
      const auto bit = static_cast<std::size_t>(std::countr_zero(bits));
      ::close(static_cast<int>(first_fd + word * word_bits + bit));
    }
  }
}

/// Async-signal-safe, as required after every fork of a process with threads.
void close_inherited() noexcept {
  std::size_t words = state.used_words.exchange(0, std::memory_order_relaxed);
  for (std::size_t index = 0; words != 0; ++index) {
    const std::size_t here = std::min(words, block_words);
    if (block* const all = block_of(index * block_bits)) {
      close_all_of(*all, index * block_bits, here);
    }
    words -= here;
  }
}

/// Runs once in a child: makes it independent of its parent.
void become_child() noexcept {
  // The life pipe's write end stays open in a child that could not replace the driver's files.
  const bool replaced = replace_driver_files(state.null.exchange(-1, std::memory_order_relaxed));
  if (const int writer = state.life_writer.exchange(-1, std::memory_order_relaxed);
      writer != -1 && !replaced) {
    keep_in_child(writer);
  }
  state.life.store(-1, std::memory_order_relaxed);
  close_inherited();
  state.sections.store(0, std::memory_order_relaxed);
  state.forks.store(0, std::memory_order_relaxed);
  state.generation.fetch_add(1, std::memory_order_release);
}

/// Pauses between two checks of another thread's progress. That takes microseconds unless the
/// thread is not scheduled, and then it needs the CPU.
class backoff_wait {
 public:
  void pause() noexcept {
    constexpr int max_yields = 100;
    if (++yields_ < max_yields) {
      ::sched_yield();
    } else {
      pause_before_retry(milliseconds(1));
    }
  }

 private:
  int yields_ = 0;
};

}  // namespace

// ---- handlers ----

struct fork_handlers {
  static void prepare() noexcept {
    state.forking.lock();
    for (auto* at = state.mutexes; at != nullptr; at = at->next_) {
      at->mutex_.lock();
    }
    // Sequentially consistent, like the two lines of `fork_section`: either this thread sees its
    // section, or it sees this fork.
    state.forks.fetch_add(1, std::memory_order_seq_cst);
    if (state.sections.load(std::memory_order_seq_cst) == 0) {
      return;
    }
    const auto deadline = clock::now() + fork_waits;
    backoff_wait waiting;
    while (state.sections.load(std::memory_order_seq_cst) != 0 && clock::now() < deadline) {
      waiting.pause();
    }
  }

  static void after_in_parent() noexcept {
    state.forks.fetch_sub(1, std::memory_order_release);
    unlock_all();
  }

  static void after_in_child() noexcept {
    become_child();
    state.mark.load(std::memory_order_relaxed)->store(this_process, std::memory_order_release);
    unlock_all();
  }

  static void unlock_all() noexcept {
    for (auto* at = state.mutexes; at != nullptr; at = at->next_) {
      at->mutex_.unlock();
    }
    state.forking.unlock();
  }

  static void add(fork_safe_mutex& mutex) noexcept {
    const std::lock_guard lock(state.forking);
    mutex.next_ = std::exchange(state.mutexes, &mutex);
  }
  static void remove(const fork_safe_mutex& mutex) noexcept {
    const std::lock_guard lock(state.forking);
    fork_safe_mutex** at = &state.mutexes;
    while (*at != &mutex) {
      at = &(*at)->next_;
    }
    *at = mutex.next_;
  }
};

namespace {

/// Set before main, or while the library is loaded: a child never finds them half set.
[[maybe_unused]] const bool handlers_set = []() noexcept {
  const std::size_t page = host_page_bytes();
  void* const memory =
      ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) {  // NOLINT(performance-no-int-to-ptr): the system's macro
    if (::madvise(memory, page, MADV_WIPEONFORK) == 0) {
      // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): never freed
      state.mark.store(new (memory) std::atomic<std::uint32_t>(this_process),
                       std::memory_order_release);
    } else {
      ::munmap(memory, page);
    }
  }
  return ::pthread_atfork(&fork_handlers::prepare,
                          &fork_handlers::after_in_parent,
                          &fork_handlers::after_in_child) == 0;
}();

/// Handles a child that was created without running the handlers.
void recognise_child(std::atomic<std::uint32_t>& mark) noexcept {
  std::uint32_t seen = cleared_by_kernel;
  if (mark.compare_exchange_strong(seen, being_set, std::memory_order_acq_rel)) {
    become_child();
    mark.store(this_process, std::memory_order_release);
    return;
  }
  while (mark.load(std::memory_order_acquire) != this_process) {  // another thread of the child
    ::sched_yield();
  }
}

}  // namespace

// ---- interface ----

std::uint64_t fork_generation() noexcept {
  std::atomic<std::uint32_t>& mark = *state.mark.load(std::memory_order_acquire);
  if (mark.load(std::memory_order_acquire) != this_process) {
    recognise_child(mark);
  }
  return state.generation.load(std::memory_order_acquire);
}

fork_section::fork_section() noexcept {
  state.sections.fetch_add(1, std::memory_order_seq_cst);
  if (state.forks.load(std::memory_order_seq_cst) == 0) {
    return;
  }
  const auto deadline = clock::now() + section_waits;
  backoff_wait waiting;
  while (state.forks.load(std::memory_order_seq_cst) != 0 && clock::now() < deadline) {
    // Not counted while waiting, so that the fork can proceed.
    state.sections.fetch_sub(1, std::memory_order_release);
    waiting.pause();
    state.sections.fetch_add(1, std::memory_order_seq_cst);
  }
}

fork_section::~fork_section() {
  state.sections.fetch_sub(1, std::memory_order_release);
}

void close_in_child(int fd) {
  const auto number = static_cast<std::size_t>(fd);
  const std::size_t word = number / word_bits;
  block& block = make_block(number);
  std::size_t used = state.used_words.load(std::memory_order_relaxed);
  while (used <= word &&
         !state.used_words.compare_exchange_weak(used, word + 1, std::memory_order_release)) {
  }
  block.at(word % block_words)
      .fetch_or(std::uint64_t{1} << (number % word_bits), std::memory_order_release);
}

void keep_in_child(int fd) noexcept {
  const auto number = static_cast<std::size_t>(fd);
  if (block* const all = block_of(number)) {
    const std::size_t word = number / word_bits % block_words;
    // NOLINTNEXTLINE(cppcoreguidelines-pro-bounds-constant-array-index): word < block_words
    (*all)[word].fetch_and(~(std::uint64_t{1} << (number % word_bits)), std::memory_order_release);
  }
}

void close_others_at_exec() noexcept {
  constexpr unsigned first = 3;
  constexpr unsigned flag_cloexec = 4;  // CLOSE_RANGE_CLOEXEC of linux/close_range.h
  static_cast<void>(::syscall(SYS_close_range, first, ~0U, flag_cloexec));
}

int life_pipe() {
  static fork_safe_mutex making;
  static_cast<void>(fork_generation());  // a child creates its own
  if (const int life = state.life.load(std::memory_order_acquire); life != -1) {
    return life;
  }
  const std::lock_guard lock(making);  // no fork comes in between
  if (const int life = state.life.load(std::memory_order_acquire); life != -1) {
    return life;
  }
  std::array<int, 2> ends{};
  checked("connect", "life pipe", "pipe2", [&] { return ::pipe2(ends.data(), O_CLOEXEC); });
  unique_fd reader(ends[0]);
  unique_fd writer(ends[1]);
  unique_fd null(retry([] { return ::open("/dev/null", O_RDWR | O_CLOEXEC); }));
  close_in_child(reader.get());
  close_in_child(writer.get());
  if (null) {
    close_in_child(null.get());
  }
  state.null.store(null.release(), std::memory_order_release);
  state.life_writer.store(writer.release(), std::memory_order_release);
  const int life = reader.release();
  state.life.store(life, std::memory_order_release);
  return life;
}

fork_safe_mutex::fork_safe_mutex() noexcept {
  fork_handlers::add(*this);
}
fork_safe_mutex::~fork_safe_mutex() {
  fork_handlers::remove(*this);
}

}  // namespace gpushm::base
