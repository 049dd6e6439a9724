// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

namespace gpushm::elf {

/// What matters of a shared library. Read by our own few lines: libelf would be a library to load
/// at the start of a command that has to be quick, for two fields of each file.
struct elf_facts {
  bool native = false;  ///< of this machine's architecture and 64 bits
  std::string soname;   ///< DT_SONAME; empty: none, or damaged
  bool operator==(const elf_facts&) const = default;
};

/// Fills `into` with the bytes at `offset` and returns how many there were (fewer only at the end).
using read_at = std::function<std::size_t(std::uint64_t offset, std::span<std::byte> into)>;

/// Nothing when it is no ELF file. Whatever the bytes are, at most some hundred KiB are read. Never
/// throws but for memory.
[[nodiscard]] std::optional<elf_facts> read_elf(const read_at& read);
/// The same of the file at `path`; nothing also when it cannot be opened.
[[nodiscard]] std::optional<elf_facts> read_elf(const std::string& path);

}  // namespace gpushm::elf
