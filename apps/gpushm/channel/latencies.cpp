// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/channel/latencies.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace gpushm::cli {

// Values below 2^sub_bits have a bucket each; each further power of two has 2^sub_bits buckets.
std::size_t latencies::bucket_of(std::uint64_t value) noexcept {
  const auto width = static_cast<unsigned>(std::bit_width(value));
  if (width <= sub_bits) {
    return static_cast<std::size_t>(value);
  }
  const unsigned shift = width - sub_bits - 1;
  // The leading bit of `value >> shift` counts as one more row.
  return (std::size_t{shift} << sub_bits) + static_cast<std::size_t>(value >> shift);
}

std::uint64_t latencies::end_of(std::size_t bucket) noexcept {
  if (bucket < (std::size_t{1} << sub_bits)) {
    return bucket;
  }
  const auto shift = static_cast<unsigned>(bucket >> sub_bits) - 1;
  const std::uint64_t first = (bucket - (std::size_t{shift} << sub_bits));
  return ((first + 1) << shift) - 1;
}

void latencies::add(std::chrono::nanoseconds value) noexcept {
  const std::int64_t counted = std::max<std::int64_t>(0, value.count());
  ++counts_[bucket_of(static_cast<std::uint64_t>(counted))];
  ++count_;
  max_ = std::max(max_, counted);
}

std::chrono::nanoseconds latencies::percentile(double part) const noexcept {
  const auto wanted = static_cast<std::uint64_t>(std::ceil(part * static_cast<double>(count_)));
  std::uint64_t seen = 0;
  for (std::size_t bucket = 0; bucket != buckets && count_ != 0; ++bucket) {
    seen += counts_[bucket];
    if (seen >= std::max<std::uint64_t>(wanted, 1)) {
      return std::chrono::nanoseconds(
          std::min<std::int64_t>(static_cast<std::int64_t>(end_of(bucket)), max_));
    }
  }
  return std::chrono::nanoseconds(0);
}

}  // namespace gpushm::cli
