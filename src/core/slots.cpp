// SPDX-License-Identifier: Apache-2.0
#include "core/slots.hpp"

#include <algorithm>
#include <bit>
#include <optional>
#include <string>

#include "gpushm/error.hpp"

namespace gpushm::core {

namespace {

constexpr unsigned state_bits = 8;  // a generation has 56
constexpr std::uint64_t state_mask = (std::uint64_t{1} << state_bits) - 1;

}  // namespace

/// Not 0, even of generation 0.
std::uint64_t slot_table::packed(gpushm::generation generation, segment_state state) noexcept {
  return generation << state_bits | (static_cast<std::uint64_t>(state) + 1);
}

slot_word slot_table::word_of(std::uint32_t slot) const noexcept {
  const std::uint64_t from = words_[slot];
  slot_word result{slot, from >> state_bits, std::nullopt};
  if (from != 0) {
    result.state = static_cast<segment_state>((from & state_mask) - 1);
  }
  return result;
}

std::uint32_t slot_table::take() {
  while (first_ != used_.size() && used_[first_] == UINT64_MAX) {
    ++first_;
  }
  const std::size_t slot =
      first_ * group_size +
      (first_ == used_.size() ? 0 : static_cast<std::size_t>(std::countr_one(used_[first_])));
  if (slot >= slots_) {
    throw error(errc::too_many_segments,
                {},
                {},
                "all " + std::to_string(slots_) + " slots of the domain's state table are in use",
                "remove segments, or raise the limit of segments");
  }
  occupy(static_cast<std::uint32_t>(slot));
  return static_cast<std::uint32_t>(slot);
}

bool slot_table::take(const slot_word& word) {
  const std::size_t group = word.slot / group_size;
  if (word.slot >= slots_ ||
      (group < used_.size() && (used_[group] >> (word.slot % group_size) & 1U) != 0)) {
    return false;
  }
  occupy(word.slot);
  words_[word.slot] = word.state ? packed(word.generation, *word.state) : 0;
  return true;
}

void slot_table::occupy(std::uint32_t slot) {
  const std::size_t group = slot / group_size;
  if (used_.size() <= group) {
    used_.resize(group + 1);
  }
  if (words_.size() <= slot) {
    words_.resize(std::size_t{slot} + 1);
  }
  used_[group] |= std::uint64_t{1} << (slot % group_size);  // nothing from here on can fail
  ++in_use_;
}

slot_word slot_table::set(std::uint32_t slot,
                          gpushm::generation generation,
                          segment_state state) noexcept {
  if (generation >= words_[slot] >> state_bits) {
    words_[slot] = packed(generation, state);
  }
  return word_of(slot);
}

slot_word slot_table::release(std::uint32_t slot) noexcept {
  const std::size_t group = slot / group_size;
  const gpushm::generation last = words_[slot] >> state_bits;
  words_[slot] = 0;
  used_[group] &= ~(std::uint64_t{1} << (slot % group_size));
  --in_use_;
  first_ = std::min(first_, group);
  return {slot, last, std::nullopt};
}

}  // namespace gpushm::core
