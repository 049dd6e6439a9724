// SPDX-License-Identifier: Apache-2.0
#include "sync/timeline_page.hpp"

#include "sync/futex.hpp"

namespace gpushm::sync {

std::optional<std::uint64_t> reading::value() const noexcept {
  const std::uint64_t found = kind() == word_kind::value ? word : last;
  if (kind() == word_kind::invalid || found > max_value) {
    return std::nullopt;
  }
  return found;
}

reading timeline_reader::read() const noexcept {
  const std::uint64_t word = word_->load(std::memory_order_acquire);
  return {word, kind_of(word) == word_kind::value ? 0 : last_->load(std::memory_order_relaxed)};
}

void timeline_reader::wake() const noexcept {
  wake_all(*word_);
}

void timeline_writer::reset(std::uint64_t value) noexcept {
  flags_->store(in_use, std::memory_order_relaxed);
  last_->store(0, std::memory_order_relaxed);
  word_->store(value, std::memory_order_release);
}

signal_result timeline_writer::signal(std::uint64_t value) noexcept {
  if (value > max_value) {
    return signal_result::out_of_range;
  }
  std::uint64_t now = word_->load(std::memory_order_relaxed);
  do {
    if (kind_of(now) != word_kind::value) {
      return signal_result::closed;
    }
    if (now >= value) {
      return signal_result::not_larger;
    }
  } while (!word_->compare_exchange_weak(
      now, value, std::memory_order_release, std::memory_order_relaxed));
  wake_all(*word_);
  return signal_result::done;
}

signal_result timeline_writer::store(std::uint64_t value) noexcept {
  if (value > max_value) {
    return signal_result::out_of_range;
  }
  std::uint64_t now = word_->load(std::memory_order_relaxed);
  do {
    if (kind_of(now) != word_kind::value) {
      return signal_result::closed;
    }
  } while (!word_->compare_exchange_weak(
      now, value, std::memory_order_release, std::memory_order_relaxed));
  wake_all(*word_);
  return signal_result::done;
}

void timeline_writer::close(word_kind kind) noexcept {
  const std::uint64_t terminal = kind == word_kind::moved ? moved_word : ended_word;
  std::uint64_t now = word_->load(std::memory_order_relaxed);
  do {
    if (is_terminal(now)) {
      return;
    }
    last_->store(now, std::memory_order_relaxed);  // visible with the terminal word
  } while (!word_->compare_exchange_weak(
      now, terminal, std::memory_order_release, std::memory_order_relaxed));
  wake_all(*word_);
}

}  // namespace gpushm::sync
