// SPDX-License-Identifier: Apache-2.0
#include "elf/facts.hpp"

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/syscall.hpp"
#include "base/unique_fd.hpp"

namespace gpushm::elf {

namespace {

// Driver libraries have about 10 program headers and 40 dynamic entries.
constexpr std::size_t max_program_headers = 128;
constexpr std::size_t max_dynamic_entries = 4096;
constexpr std::size_t max_soname_bytes = 256;

#if defined(__x86_64__)
constexpr Elf64_Half this_machine = EM_X86_64;
#elif defined(__aarch64__)
constexpr Elf64_Half this_machine = EM_AARCH64;
#else
#error "unsupported ELF machine"
#endif

template <typename Value>
bool read_values(const read_at& read, std::uint64_t offset, std::vector<Value>& values) {
  const auto bytes = std::as_writable_bytes(std::span(values));
  return read(offset, bytes) == bytes.size();
}

// The file offset of the byte that is loaded at `address`.
std::optional<std::uint64_t> file_offset(const std::vector<Elf64_Phdr>& segments,
                                         std::uint64_t address) {
  for (const Elf64_Phdr& each : segments) {
    if (each.p_type == PT_LOAD && address >= each.p_vaddr &&
        address - each.p_vaddr < each.p_filesz) {
      return each.p_offset + (address - each.p_vaddr);
    }
  }
  return std::nullopt;
}

std::string read_soname(const read_at& read, const std::vector<Elf64_Phdr>& segments) {
  const auto dynamic = std::find_if(segments.begin(), segments.end(), [](const Elf64_Phdr& each) {
    return each.p_type == PT_DYNAMIC;
  });
  if (dynamic == segments.end()) {
    return {};
  }
  std::vector<Elf64_Dyn> entries(static_cast<std::size_t>(
      std::min<std::uint64_t>(dynamic->p_filesz / sizeof(Elf64_Dyn), max_dynamic_entries)));
  if (!read_values(read, dynamic->p_offset, entries)) {
    return {};
  }
  std::optional<std::uint64_t> table;
  std::optional<std::uint64_t> name;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag == DT_NULL) {
      break;
    }
    if (entry.d_tag == DT_STRTAB) {
      table = file_offset(segments, entry.d_un.d_ptr);
    } else if (entry.d_tag == DT_SONAME) {
      name = entry.d_un.d_val;
    }
  }
  if (!table || !name || *name > UINT64_MAX - *table) {
    return {};
  }
  std::array<char, max_soname_bytes> text{};
  const std::size_t got = read(*table + *name, std::as_writable_bytes(std::span(text)));
  const std::string_view bytes(text.data(), std::min(got, text.size()));
  const std::size_t end = bytes.find('\0');
  // A name with a slash would refer to another directory.
  if (end == std::string_view::npos || bytes.substr(0, end).find('/') != std::string_view::npos ||
      bytes.substr(0, end) == "." || bytes.substr(0, end) == "..") {
    return {};
  }
  return std::string(bytes.substr(0, end));
}

}  // namespace

std::optional<elf_facts> read_elf(const read_at& read) {
  Elf64_Ehdr header{};
  const auto bytes = std::as_writable_bytes(std::span(&header, 1));
  const std::size_t got = read(0, bytes);
  if (got < EI_NIDENT ||
      std::memcmp(static_cast<const unsigned char*>(header.e_ident), ELFMAG, SELFMAG) != 0) {
    return std::nullopt;
  }
  elf_facts facts;
  facts.native = got == bytes.size() && header.e_ident[EI_CLASS] == ELFCLASS64 &&
                 header.e_ident[EI_DATA] == ELFDATA2LSB && header.e_machine == this_machine;
  if (!facts.native || header.e_phentsize != sizeof(Elf64_Phdr) ||
      header.e_phnum > max_program_headers) {
    return facts;
  }
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  if (read_values(read, header.e_phoff, segments)) {
    facts.soname = read_soname(read, segments);
  }
  return facts;
}

std::optional<elf_facts> read_elf(const std::string& path) {
  // O_NONBLOCK: a hostile root may have a pipe there.
  const base::unique_fd file(
      base::retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  if (!file) {
    return std::nullopt;
  }
  return read_elf([&](std::uint64_t offset, std::span<std::byte> into) -> std::size_t {
    if (offset > static_cast<std::uint64_t>(INT64_MAX)) {
      return 0;
    }
    const auto got = base::retry(
        [&] { return ::pread(file.get(), into.data(), into.size(), static_cast<off_t>(offset)); });
    return got < 0 ? 0 : static_cast<std::size_t>(got);
  });
}

}  // namespace gpushm::elf
