// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "channel/layout.hpp"
#include "channel/producer_table.hpp"
#include "channel/table.hpp"
#include "sync/timeline_page.hpp"

namespace gpushm::channel {

/// A consumer's part of a channel's protocol, without waits and streams. The steps and their order
/// are those of the model (tests/model/channel.pml).
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class consumer_table {
 public:
  /// `first_timeline`: of `first_held_timeline + held` words of this process's page, which are 0.
  consumer_table(sync::timeline_page& page,
                 std::uint32_t first_timeline,
                 consumer_mode mode,
                 std::uint32_t held) noexcept
      : page_(page), first_(first_timeline), mode_(mode), held_(held) {}

  /// Begins with a producer that has accepted this consumer from `start` on, in the entry `entry`.
  /// `page`: the generation of its page. A `share` consumer does so once.
  void attach(const checked_table& table,
              std::uint64_t start,
              std::uint32_t entry,
              std::uint64_t page) noexcept;
  [[nodiscard]] bool is_attached() const noexcept { return producer_.has_value(); }

  struct item {
    std::uint64_t number = 0;
    std::uint32_t slot = 0;
    std::uint64_t offset = 0;         ///< of the slot, in the segment of the slots
    std::uint64_t bytes = 0;          ///< of the slot
    std::uint32_t held_timeline = 0;  ///< of `latest`
    /// What `released_timeline` gets when it and all before are released: its number, or the number
    /// of this item among those that were given to this consumer.
    std::uint64_t release = 0;
    std::uint32_t metadata_bytes = 0;
    std::array<std::byte, max_metadata_bytes> metadata{};
  };
  enum class outcome : std::uint8_t {
    taken,
    not_yet,  ///< wait for `next_number` in `next_timeline`
    full,     ///< `latest`: it holds as many as it may
    ended,    ///< the producer has ended, and there are no more good items
    ending,   ///< the producer has ended: wait for the end of `published_timeline`
    invalid,  ///< the producer has stored what is not possible
  };
  /// Takes the next item if there is one. Then the stream waits until `published_timeline` has its
  /// number, uses it, and releases it. Looks at no more items than there are slots, whatever the
  /// producer has stored: then `not_yet`, or `invalid`.
  [[nodiscard]] outcome take(item& into) noexcept;
  /// The producer's timeline that shows whether there is an item.
  [[nodiscard]] std::uint32_t next_timeline() const noexcept {
    return mode_ == consumer_mode::share ? first_given_timeline + entry_ : announced_timeline;
  }
  /// The value of that timeline for which `take` returns the next item.
  [[nodiscard]] std::uint64_t next_number() const noexcept { return next_; }

  [[nodiscard]] const checked_table& producer() const noexcept { return *producer_; }

 private:
  [[nodiscard]] outcome take_next(item& into) noexcept;
  [[nodiscard]] outcome take_newest(item& into) noexcept;
  [[nodiscard]] outcome take_given(item& into) noexcept;
  void describe(std::uint64_t number, std::uint32_t slot, item& into) const noexcept;
  [[nodiscard]] outcome find_newest(std::uint64_t& newest) const noexcept;
  [[nodiscard]] outcome find_next(std::uint32_t timeline) const noexcept;
  [[nodiscard]] std::atomic<std::uint64_t>& held(std::uint32_t index) const noexcept {
    return page_.words[first_ + first_held_timeline + index];
  }

  sync::timeline_page& page_;
  const std::uint32_t first_;
  const consumer_mode mode_;
  const std::uint32_t held_;
  std::optional<checked_table> producer_;
  std::uint64_t next_ = 1;
  std::uint32_t entry_ = 0;
};

}  // namespace gpushm::channel
