// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

namespace gpushm::elf {

/// The required properties of a shared library. Does not use libelf, which would slow the start of
/// a command that must be fast, for two fields per file.
struct elf_facts {
  bool native = false;  ///< of this machine's architecture and 64 bits
  std::string soname;   ///< DT_SONAME; empty: none, or damaged
  bool operator==(const elf_facts&) const = default;
};

/// Fills `into` with the bytes at `offset` and returns their number (fewer only at the end).
using read_at = std::function<std::size_t(std::uint64_t offset, std::span<std::byte> into)>;

/// Returns nullopt if it is not an ELF file. Reads at most some hundred KiB, whatever the content.
/// Throws only `std::bad_alloc`.
[[nodiscard]] std::optional<elf_facts> read_elf(const read_at& read);
/// The same for the file at `path`; also empty when it cannot be opened.
[[nodiscard]] std::optional<elf_facts> read_elf(const std::string& path);

}  // namespace gpushm::elf
