// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <tuple>

namespace gpushm::core {

/// A time of the machine's monotonic clock, which a successor of the process can use.
using time_point = std::chrono::steady_clock::time_point;

/// What a domain does at certain times, in order of time. At equal times: in order of kind and
/// number. Not saved: it follows from the objects that have a deadline.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class deadline_queue final {
 public:
  enum class kind : std::uint8_t { waiting, confirmation };
  struct entry {
    time_point when{};
    kind what = kind::waiting;
    std::uint64_t number = 0;  ///< of the object
    friend bool operator==(const entry&, const entry&) = default;
    friend bool operator<(const entry& one, const entry& two) noexcept {
      return std::tie(one.when, one.what, one.number) < std::tie(two.when, two.what, two.number);
    }
  };

  /// No effect if it already exists. Throws std::bad_alloc; then nothing has changed.
  void add(const entry& entry) { entries_.insert(entry); }
  /// No effect if it is not there.
  void erase(const entry& entry) noexcept { entries_.erase(entry); }
  /// The earliest one, if it is due at `now`. It stays.
  [[nodiscard]] std::optional<entry> due(time_point now) const noexcept {
    return entries_.empty() || entries_.begin()->when > now ? std::nullopt
                                                            : std::optional(*entries_.begin());
  }
  [[nodiscard]] std::optional<time_point> next() const noexcept {
    return entries_.empty() ? std::nullopt : std::optional(entries_.begin()->when);
  }
  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }

 private:
  std::set<entry> entries_;
};

}  // namespace gpushm::core
