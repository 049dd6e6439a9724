// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace gpushm::cli {

/// Counts durations in buckets that are at most 1.6 percent wide, for percentiles of any number of
/// them in constant memory.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class latencies {
 public:
  /// Negative durations count as 0.
  void add(std::chrono::nanoseconds value) noexcept;
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] std::chrono::nanoseconds max() const noexcept {
    return std::chrono::nanoseconds(max_);
  }
  /// The smallest value that at least `part` of all reach: 0.5 is the median. 0 if there is none.
  [[nodiscard]] std::chrono::nanoseconds percentile(double part) const noexcept;

 private:
  static constexpr unsigned sub_bits = 6;
  static constexpr std::size_t buckets = (64 - sub_bits + 1) << sub_bits;
  [[nodiscard]] static std::size_t bucket_of(std::uint64_t value) noexcept;
  /// The largest value of a bucket.
  [[nodiscard]] static std::uint64_t end_of(std::size_t bucket) noexcept;

  std::array<std::uint64_t, buckets> counts_{};
  std::uint64_t count_ = 0;
  std::int64_t max_ = 0;
};

}  // namespace gpushm::cli
