// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/files/unique_fd.hpp"

namespace gpushm::base {

struct mapping_value {
  void* address = nullptr;
  std::size_t size_bytes = 0;
  friend bool operator==(const mapping_value&, const mapping_value&) = default;
};
struct mapping_traits {
  using value_type = mapping_value;
  static mapping_value empty() noexcept { return {}; }
  static void close(mapping_value value) noexcept;
};
/// Owner of an mmap'ed range.
using unique_mapping = unique_handle<mapping_traits>;

/// Maps the first `size_bytes` of `fd`, shared. Throws `error` naming `operation`.
[[nodiscard]] unique_mapping map_file(std::string_view operation,
                                      int fd,
                                      std::size_t size_bytes,
                                      bool writable);

/// Fills `bytes` with random numbers that are suitable for unguessable identifiers (getrandom).
void random_bytes(std::span<std::uint8_t> bytes);

/// The first `limit_bytes` of a file; nullopt if it cannot be read (`errno` has the cause).
[[nodiscard]] std::optional<std::string> read_small_file(const std::string& path,
                                                         std::size_t limit_bytes = 65'536);

/// Opens a file (created if there is none, not through a symbolic link) and takes its exclusive
/// lock, which ends with the descriptor. Empty: another process has it. Throws `error` naming
/// `operation`.
[[nodiscard]] unique_fd try_lock_file(std::string_view operation, const std::string& path);

}  // namespace gpushm::base
