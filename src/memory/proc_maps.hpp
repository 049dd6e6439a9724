// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <istream>
#include <optional>

namespace gpushm::memory {

/// The file that a range of addresses is mapped from.
struct mapped_file {
  dev_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t offset_bytes = 0;  ///< in the file, of the range's first byte
  bool is_memfd = false;
  bool shared = false;  ///< MAP_SHARED
};

/// Reads lines as in /proc/self/maps. Nothing when a part of the range [first, end) is not mapped,
/// not from a file, or not from one file at offsets that continue each other. Pure.
[[nodiscard]] std::optional<mapped_file> find_mapped_file(std::istream& maps,
                                                          std::uint64_t first,
                                                          std::uint64_t end);

}  // namespace gpushm::memory
