// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace gpushm::weights {

/// Where a file has the bytes of a slice that are not contiguous in it: runs of equal length, in
/// the order of the slice. Nothing of it grows with the number of runs, of which a matrix has one
/// for each row.
struct strided_source {
  struct dimension {
    std::uint64_t count = 0;
    std::uint64_t stride_bytes = 0;
  };
  std::uint64_t run_bytes = 0;
  std::vector<dimension> outer;  ///< the outermost one first

  /// From the first byte of run 0.
  [[nodiscard]] std::uint64_t offset_of(std::uint64_t run) const {
    std::uint64_t result = 0;
    for (std::size_t i = outer.size(); i-- != 0;) {
      result += run % outer[i].count * outer[i].stride_bytes;
      run /= outer[i].count;
    }
    return result;
  }
};

}  // namespace gpushm::weights
