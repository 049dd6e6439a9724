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
/// "glibc-ld.so.cache1.1", alone (glibc 2.32 and later) or after the old "ld.so-1.7.0". Empty when
/// it is not such a file; skips entries that point outside it. Throws only `std::bad_alloc`; no
/// I/O.
[[nodiscard]] std::optional<std::vector<ld_cache_entry>> parse_ld_cache(
    std::span<const std::byte> bytes);

/// Whether all of `bytes` is such a file: its tables and every string that an entry points to are
/// in bounds. For a file that another program will read without checks. Never throws; no I/O.
[[nodiscard]] bool is_ld_cache(std::span<const std::byte> bytes) noexcept;

}  // namespace gpushm::elf
