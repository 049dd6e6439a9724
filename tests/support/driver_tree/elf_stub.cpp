// SPDX-License-Identifier: Apache-2.0
#include "tests/support/driver_tree/elf_stub.hpp"

#include <elf.h>

#include <array>
#include <cstdint>
#include <cstring>

namespace gpushm_tests {

namespace {

#if defined(__x86_64__)
constexpr Elf64_Half machine = EM_X86_64;
constexpr std::uint32_t cache_flags = 0x0303;
#else
constexpr Elf64_Half machine = EM_AARCH64;
constexpr std::uint32_t cache_flags = 0x0a03;
#endif

// The load address: differs from the file offset, so that tests detect confusion of the two.
constexpr std::uint64_t base_address = 0x10000;

template <typename Value>
void append(std::string& bytes, const Value& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void set_ident(unsigned char* ident, unsigned char elf_class) {
  std::memcpy(ident, ELFMAG, SELFMAG);
  ident[EI_CLASS] = elf_class;
  ident[EI_DATA] = ELFDATA2LSB;
  ident[EI_VERSION] = EV_CURRENT;
}

}  // namespace

std::string elf_stub(std::string_view soname, int bits) {
  std::string bytes;
  if (bits == 32) {
    Elf32_Ehdr header{};
    set_ident(static_cast<unsigned char*>(header.e_ident), ELFCLASS32);
    header.e_type = ET_DYN;
    header.e_machine = EM_386;
    append(bytes, header);
    return bytes;
  }
  constexpr std::uint64_t dynamic_at = sizeof(Elf64_Ehdr) + 2 * sizeof(Elf64_Phdr);
  constexpr std::uint64_t dynamic_bytes = 3 * sizeof(Elf64_Dyn);
  constexpr std::uint64_t strings_at = dynamic_at + dynamic_bytes;
  const std::uint64_t all_bytes = strings_at + 1 + soname.size() + 1;

  Elf64_Ehdr header{};
  set_ident(static_cast<unsigned char*>(header.e_ident), ELFCLASS64);
  header.e_type = ET_DYN;
  header.e_machine = machine;
  header.e_phoff = sizeof(Elf64_Ehdr);
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 2;
  append(bytes, header);
  Elf64_Phdr load{};
  load.p_type = PT_LOAD;
  load.p_vaddr = base_address;
  load.p_filesz = all_bytes;
  load.p_memsz = all_bytes;
  append(bytes, load);
  Elf64_Phdr dynamic{};
  dynamic.p_type = PT_DYNAMIC;
  dynamic.p_offset = dynamic_at;
  dynamic.p_vaddr = base_address + dynamic_at;
  dynamic.p_filesz = dynamic_bytes;
  append(bytes, dynamic);
  Elf64_Dyn strings{};
  strings.d_tag = DT_STRTAB;
  strings.d_un.d_ptr = base_address + strings_at;
  append(bytes, strings);
  Elf64_Dyn name{};
  name.d_tag = soname.empty() ? DT_NULL : DT_SONAME;
  name.d_un.d_val = 1;
  append(bytes, name);
  append(bytes, Elf64_Dyn{});
  bytes.append(1, '\0').append(soname).append(1, '\0');
  return bytes;
}

std::string ld_cache_file(const std::vector<std::string>& paths, bool old_in_front) {
  std::string bytes;
  if (old_in_front) {
    // One unused entry and the padding to eight bytes.
    bytes.append("ld.so-1.7.0").append(1, '\0');
    append(bytes, std::uint32_t{1});
    append(bytes, std::array<std::uint32_t, 3>{cache_flags, 0, 0});
    bytes.append((8 - bytes.size() % 8) % 8, '\0');
  }
  constexpr std::size_t header_bytes = 48;
  constexpr std::size_t entry_bytes = 24;
  std::string strings;
  std::string entries;
  const std::size_t strings_at = header_bytes + paths.size() * entry_bytes;
  for (const std::string& path : paths) {
    const auto value = static_cast<std::uint32_t>(strings_at + strings.size());
    const auto key = static_cast<std::uint32_t>(value + path.find_last_of('/') + 1);
    append(entries, std::array<std::uint32_t, 4>{cache_flags, key, value, 0});
    append(entries, std::uint64_t{0});
    strings.append(path).append(1, '\0');
  }
  std::string cache = "glibc-ld.so.cache1.1";
  append(cache, static_cast<std::uint32_t>(paths.size()));
  append(cache, static_cast<std::uint32_t>(strings.size()));
  append(cache, std::uint32_t{2});  // little endian
  cache.append(header_bytes - cache.size(), '\0');
  return bytes.append(cache).append(entries).append(strings);
}

}  // namespace gpushm_tests
