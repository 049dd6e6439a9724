// SPDX-License-Identifier: Apache-2.0
#include "containers/elf/facts.hpp"

#include "containers/elf/layout.hpp"

namespace gpushm::elf {

std::string soname_of(const read_at& read, const layout& file) {
  const auto strings = file.table(DT_STRTAB);
  const auto name = file.value(DT_SONAME);
  if (!strings || !name || *name > UINT64_MAX - *strings) {
    return {};
  }
  std::string text = read_text(read, *strings + *name);
  // A name with a slash would refer to another directory.
  return text.find('/') == std::string::npos && text != "." && text != ".." ? text : std::string();
}

std::optional<elf_facts> read_elf(const read_at& read) {
  const std::optional<layout> file = read_layout(read);
  return file ? std::optional(elf_facts{file->native, soname_of(read, *file)}) : std::nullopt;
}

std::optional<elf_facts> read_elf(const std::string& path) {
  std::optional<elf_facts> facts;
  with_file(path, [&](const read_at& read) { facts = read_elf(read); });
  return facts;
}

}  // namespace gpushm::elf
