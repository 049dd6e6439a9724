// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace gpushm::elf {

struct ld_cache_entry {
  std::string name;  ///< "libcuda.so.1"
  std::string path;  ///< "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
  bool operator==(const ld_cache_entry&) const = default;
};

/// The 64-bit libraries of this machine's architecture in an ld.so.cache, in its order: the format
/// "glibc-ld.so.cache1.1", alone (glibc 2.32 and later) or behind the old "ld.so-1.7.0". Nothing
/// when it is no such file; entries that point outside it are left out. Never throws but for
/// memory; no I/O.
[[nodiscard]] std::optional<std::vector<ld_cache_entry>> parse_ld_cache(
    std::span<const std::byte> bytes);

/// Whether all of `bytes` is such a file: its tables are inside, and so is every text that an entry
/// points at. For a file that another program is going to read without looking. Never throws; no
/// I/O.
[[nodiscard]] bool is_ld_cache(std::span<const std::byte> bytes) noexcept;

}  // namespace gpushm::elf
