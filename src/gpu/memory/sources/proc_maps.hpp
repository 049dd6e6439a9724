// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <istream>
#include <optional>

namespace gpushm::memory {

/// The file from which an address range is mapped.
struct mapped_file {
  dev_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t offset_bytes = 0;  ///< of the range's first byte in the file
  bool is_memfd = false;
  bool shared = false;  ///< MAP_SHARED
};

/// Parses lines of /proc/self/maps. Returns nullopt if a part of the range [first, end) is not
/// mapped, not from a file, or not from a single file at contiguous offsets. Pure.
[[nodiscard]] std::optional<mapped_file> find_mapped_file(std::istream& maps,
                                                          std::uint64_t first,
                                                          std::uint64_t end);

}  // namespace gpushm::memory
