// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/effects.hpp"
#include "gpushm/types.hpp"

namespace gpushm::core {

/// The state table of a domain: which slots are in use, and the current word of each
/// (docs/adr/0006). Segments have only the number of a slot. Every word that is shown, by an effect
/// or after a restart, is from here. Memory: 9 bytes for each slot up to the last one that was
/// ever in use, up to three times that while it grows.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Never blocks.
class slot_table {
 public:
  /// All slots are free.
  explicit slot_table(std::uint32_t slots) noexcept : slots_(slots) {}

  /// The lowest free slot, which is in use from now on, without a word: which one depends only on
  /// those in use, not on the past. Changes nothing if it throws: too_many_segments,
  /// std::bad_alloc.
  [[nodiscard]] std::uint32_t take();
  /// After a restart: takes this slot, with its word. False, and nothing is changed, if it does not
  /// exist or is in use. Throws std::bad_alloc; changes nothing then.
  [[nodiscard]] bool take(const slot_word& word);
  /// Returns the word to show. A word does not go back to an older generation: it stays as it is.
  /// Precondition: the slot is in use.
  [[nodiscard]] slot_word set(std::uint32_t slot,
                              gpushm::generation generation,
                              segment_state state) noexcept;
  /// Returns the word to show: that of a free slot, with the generation that it had. Precondition:
  /// the slot is in use.
  [[nodiscard]] slot_word release(std::uint32_t slot) noexcept;

  /// Calls `visit(slot_word)` for each slot that has a word, in order.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (std::size_t i = 0; i != words_.size(); ++i) {
      if (words_[i] != 0) {
        visit(word_of(static_cast<std::uint32_t>(i)));
      }
    }
  }
  [[nodiscard]] std::size_t in_use() const noexcept { return in_use_; }
  /// No slot from this one on was ever in use.
  [[nodiscard]] std::size_t end() const noexcept { return words_.size(); }
  /// No state: it has no word. Precondition: `slot` is less than `end`.
  [[nodiscard]] slot_word word_of(std::uint32_t slot) const noexcept;

 private:
  static constexpr std::uint32_t group_size = 64;

  [[nodiscard]] static std::uint64_t packed(gpushm::generation generation,
                                            segment_state state) noexcept;
  void occupy(std::uint32_t slot);

  std::uint32_t slots_;
  std::size_t in_use_ = 0;
  std::vector<std::uint64_t> words_;  ///< packed; 0: none
  std::vector<std::uint64_t> used_;   ///< a bit for each slot, in groups
  std::size_t first_ = 0;             ///< all groups before this one are full
};

}  // namespace gpushm::core
