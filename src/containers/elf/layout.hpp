// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <elf.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "containers/elf/facts.hpp"

namespace gpushm::elf {

/// The tables of an ELF file. Values are as in the file, unchecked.
///
/// Thread-safety: distinct objects: safe; shared objects: const members safe.
struct layout {
  bool native = false;               ///< of this machine's architecture and 64 bits
  std::vector<Elf64_Phdr> segments;  ///< empty: none, or damaged
  std::vector<Elf64_Dyn> dynamic;    ///< up to its end; empty: none, or damaged

  /// The first program header of that type; null if there is none.
  [[nodiscard]] const Elf64_Phdr* segment(Elf64_Word type) const noexcept;
  /// The value of the last dynamic entry with that tag.
  [[nodiscard]] std::optional<std::uint64_t> value(Elf64_Sxword tag) const noexcept;
  /// The file offset of the byte that is loaded at the address in the dynamic entry `tag`.
  [[nodiscard]] std::optional<std::uint64_t> table(Elf64_Sxword tag) const noexcept;
};

/// Returns nullopt if it is not an ELF file. Throws only `std::bad_alloc`.
[[nodiscard]] std::optional<layout> read_layout(const read_at& read);

/// The text at `offset` up to a NUL byte; empty if there is none within 256 bytes.
[[nodiscard]] std::string read_text(const read_at& read, std::uint64_t offset);

/// DT_SONAME; empty: none, or damaged, or not the name of a file.
[[nodiscard]] std::string soname_of(const read_at& read, const layout& file);

/// Calls `use` with a reader of the file at `path`; false when it cannot be opened.
bool with_file(const std::string& path, const std::function<void(const read_at&)>& use);
/// A reader of an open file, which must stay open.
[[nodiscard]] read_at reader_of(int file);

template <typename Value>
bool read_values(const read_at& read, std::uint64_t offset, std::vector<Value>& values) {
  const auto bytes = std::as_writable_bytes(std::span(values));
  return read(offset, bytes) == bytes.size();
}

}  // namespace gpushm::elf
