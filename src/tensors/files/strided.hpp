// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpushm::tensors {

/// Where a file has the bytes of a slice that are not contiguous in it: runs, in the order of the
/// slice. It grows with the ranges that were selected, not with the number of runs, of which a
/// matrix has one for each row.
struct strided_source {
  /// Indices that follow each other in the slice and in the file.
  struct range {
    std::uint64_t first = 0;  ///< in the slice
    std::uint64_t begin = 0;  ///< in the file, from the lowest index of all ranges
  };
  struct dimension {
    std::uint64_t count = 0;  ///< of indices in the slice
    std::uint64_t stride_bytes = 0;
    std::vector<range> ranges;  ///< by `first`, which is 0 in the first one

    /// The number of the range that has this index of the slice.
    [[nodiscard]] std::size_t range_of(std::uint64_t index) const {
      const auto behind = std::upper_bound(
          ranges.begin(), ranges.end(), index, [](std::uint64_t position, const range& each) {
            return position < each.first;
          });
      return static_cast<std::size_t>(behind - ranges.begin()) - 1;
    }
  };
  /// Bytes of a file that follow each other.
  struct run {
    std::uint64_t offset = 0;  ///< from the first byte of the slice that the file has
    std::uint64_t bytes = 0;
  };
  dimension row;                 ///< of bytes
  std::vector<dimension> outer;  ///< the outermost one first

  /// The bytes of the slice from this one to the end of its run.
  [[nodiscard]] run run_at(std::uint64_t byte) const {
    const std::uint64_t in_row = byte % row.count;
    const std::size_t in = row.range_of(in_row);
    const std::uint64_t end = in + 1 == row.ranges.size() ? row.count : row.ranges[in + 1].first;
    run result{row.ranges[in].begin + (in_row - row.ranges[in].first), end - in_row};
    std::uint64_t rows = byte / row.count;
    for (std::size_t i = outer.size(); i-- != 0;) {
      const std::uint64_t index = rows % outer[i].count;
      const range& from = outer[i].ranges[outer[i].range_of(index)];
      result.offset += (from.begin + (index - from.first)) * outer[i].stride_bytes;
      rows /= outer[i].count;
    }
    return result;
  }
};

}  // namespace gpushm::tensors
