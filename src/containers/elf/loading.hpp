// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "containers/elf/facts.hpp"

namespace gpushm::elf {

/// A version of symbols that a file needs from a library: "libc.so.6", "GLIBC_2.28".
struct needed_version {
  std::string library;
  std::string version;
  bool operator==(const needed_version&) const = default;
};

/// How a program or library is loaded, and with what.
struct loading {
  bool native = false;  ///< of this machine's architecture and 64 bits; false: the rest is empty
  std::string soname;   ///< as in `elf_facts`
  std::string interpreter;             ///< of a program that is not static: its loader's path
  std::vector<std::string> libraries;  ///< DT_NEEDED
  std::vector<needed_version> needed_versions;  ///< except weak ones
  std::vector<std::string> defined_versions;    ///< of a library's own symbols
  bool operator==(const loading&) const = default;
};

/// Returns nullopt if it is not an ELF file. Damaged tables are empty. Reads at most some hundred
/// KiB, whatever the content. Throws only `std::bad_alloc`.
[[nodiscard]] std::optional<loading> read_loading(const read_at& read);
/// The same for the file at `path`; also empty when it cannot be opened.
[[nodiscard]] std::optional<loading> read_loading(const std::string& path);
/// The same for an open file.
[[nodiscard]] std::optional<loading> read_loading(int file);

}  // namespace gpushm::elf
