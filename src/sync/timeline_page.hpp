// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "sync/word.hpp"

namespace gpushm::sync {

/// How many timelines, and so words, one page has.
inline constexpr std::uint32_t words_per_page = 512;

/// Shared memory that one process writes, and the broker after the end of that process. Streams use
/// only the first 4 KiB, `words`.
struct timeline_page {
  std::array<std::atomic<std::uint64_t>, words_per_page> words;
  /// The last values of timelines whose word is terminal.
  std::array<std::atomic<std::uint64_t>, words_per_page> last;
  /// Bits of the constants below, for each timeline.
  std::array<std::atomic<std::uint32_t>, words_per_page> flags;
};
inline constexpr std::uint32_t signaled_by_streams = 1;
inline constexpr std::uint32_t in_use = 2;
inline constexpr std::uint32_t waited_for_by_many = 4;
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(offsetof(timeline_page, last) == 4'096);
static_assert(offsetof(timeline_page, flags) == 8'192);
static_assert(sizeof(timeline_page) == 10'240);
/// The size of the memfd: whole pages of 4 KiB. More memory that only the signaler writes may
/// follow, up to `max_timeline_page_bytes` in all.
inline constexpr std::size_t timeline_page_bytes = 12'288;
inline constexpr std::size_t max_timeline_page_bytes = std::size_t{1} << 20U;
[[nodiscard]] constexpr bool is_timeline_page_size(std::uint64_t bytes) noexcept {
  return bytes >= timeline_page_bytes && bytes <= max_timeline_page_bytes && bytes % 4'096 == 0;
}

/// The state of one timeline as a reader sees it. The page belongs to another process: any values
/// are possible.
struct reading {
  std::uint64_t word = 0;
  std::uint64_t last = 0;  ///< if `word` is terminal
  [[nodiscard]] word_kind kind() const noexcept { return kind_of(word); }
  /// Returns the value, or the last value of an ended timeline; nullopt if it is not valid.
  [[nodiscard]] std::optional<std::uint64_t> value() const noexcept;
  friend bool operator==(const reading&, const reading&) = default;
};

/// One timeline of a page that is mapped for reading. Not owning.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class timeline_reader {
 public:
  /// Precondition: `index` is below `words_per_page`; the page is mapped as long as this is used.
  timeline_reader(const timeline_page& page, std::uint32_t index) noexcept
      : word_(&page.words[index]), last_(&page.last[index]), flags_(&page.flags[index]) {}

  /// No system call. What the signaler wrote before it signaled the value is visible afterwards.
  [[nodiscard]] reading read() const noexcept;
  [[nodiscard]] bool is_signaled_by_streams() const noexcept {
    return (flags_->load(std::memory_order_relaxed) & signaled_by_streams) != 0;
  }
  [[nodiscard]] bool is_waited_for_by_many() const noexcept {
    return (flags_->load(std::memory_order_relaxed) & waited_for_by_many) != 0;
  }
  /// Wakes every waiter of any process, which then reads again. Does not write.
  void wake() const noexcept;
  [[nodiscard]] const std::atomic<std::uint64_t>& word() const noexcept { return *word_; }

 private:
  const std::atomic<std::uint64_t>* word_;
  const std::atomic<std::uint64_t>* last_;
  const std::atomic<std::uint32_t>* flags_;
};

/// The result of a signal by a CPU.
enum class signal_result : std::uint8_t {
  done,
  out_of_range,  ///< above `max_value`
  not_larger,    ///< the word has this value or a larger one
  closed,        ///< the word is terminal
};

/// One timeline of a page that this process signals. Not owning.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class timeline_writer {
 public:
  /// As `timeline_reader`.
  timeline_writer(timeline_page& page, std::uint32_t index) noexcept
      : word_(&page.words[index]),
        last_(&page.last[index]),
        flags_(&page.flags[index]),
        reader_(page, index) {}

  /// Begins a new timeline. Precondition: no process reads the old one.
  void reset(std::uint64_t value) noexcept;
  /// Stores a larger value and wakes waiters: one system call. What this thread wrote before is
  /// visible to processes that read the value.
  signal_result signal(std::uint64_t value) noexcept;
  /// Stores a value that need not be larger, and wakes waiters: for a timeline of flags.
  signal_result store(std::uint64_t value) noexcept;
  /// Announces that streams also signal the timeline: waiters poll from now on, because streams do
  /// not wake them. Wakes sleeping waiters. No effect after the first call.
  void use_streams() noexcept {
    if (!reader_.is_signaled_by_streams()) {
      flags_->fetch_or(signaled_by_streams, std::memory_order_relaxed);
      reader_.wake();
    }
  }
  /// Announces that many processes wait for the timeline: they poll for a while before they sleep,
  /// because the signaler needs a microsecond to wake each of them.
  void expect_many() noexcept {
    if (!reader_.is_waited_for_by_many()) {
      flags_->fetch_or(waited_for_by_many, std::memory_order_relaxed);
    }
  }
  /// Stores the last value, then the terminal word, and wakes waiters. Precondition: streams no
  /// longer write the word. No effect if it is terminal.
  void close(word_kind kind) noexcept;
  [[nodiscard]] const timeline_reader& reader() const noexcept { return reader_; }

 private:
  std::atomic<std::uint64_t>* word_;
  std::atomic<std::uint64_t>* last_;
  std::atomic<std::uint32_t>* flags_;
  timeline_reader reader_;
};

}  // namespace gpushm::sync
