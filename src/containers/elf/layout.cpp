// SPDX-License-Identifier: Apache-2.0
#include "containers/elf/layout.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"

namespace gpushm::elf {

namespace {

// Driver libraries have about 10 program headers and 40 dynamic entries.
constexpr std::size_t max_program_headers = 128;
constexpr std::size_t max_dynamic_entries = 4096;
constexpr std::size_t max_text_bytes = 256;

#if defined(__x86_64__)
constexpr Elf64_Half this_machine = EM_X86_64;
#elif defined(__aarch64__)
constexpr Elf64_Half this_machine = EM_AARCH64;
#else
#error "unsupported ELF machine"
#endif

std::vector<Elf64_Dyn> read_dynamic(const read_at& read, const Elf64_Phdr& segment) {
  std::vector<Elf64_Dyn> entries(static_cast<std::size_t>(
      std::min<std::uint64_t>(segment.p_filesz / sizeof(Elf64_Dyn), max_dynamic_entries)));
  if (!read_values(read, segment.p_offset, entries)) {
    return {};
  }
  const auto end = std::find_if(entries.begin(), entries.end(), [](const Elf64_Dyn& entry) {
    return entry.d_tag == DT_NULL;
  });
  entries.erase(end, entries.end());
  return entries;
}

}  // namespace

const Elf64_Phdr* layout::segment(Elf64_Word type) const noexcept {
  const auto result = std::find_if(segments.begin(), segments.end(), [&](const Elf64_Phdr& each) {
    return each.p_type == type;
  });
  return result == segments.end() ? nullptr : &*result;
}

std::optional<std::uint64_t> layout::value(Elf64_Sxword tag) const noexcept {
  std::optional<std::uint64_t> result;
  for (const Elf64_Dyn& entry : dynamic) {
    if (entry.d_tag == tag) {
      result = entry.d_un.d_val;
    }
  }
  return result;
}

std::optional<std::uint64_t> layout::table(Elf64_Sxword tag) const noexcept {
  const auto address = value(tag);
  for (const Elf64_Phdr& each : segments) {
    if (address && each.p_type == PT_LOAD && *address >= each.p_vaddr &&
        *address - each.p_vaddr < each.p_filesz) {
      return each.p_offset + (*address - each.p_vaddr);
    }
  }
  return std::nullopt;
}

std::optional<layout> read_layout(const read_at& read) {
  Elf64_Ehdr header{};
  const auto bytes = std::as_writable_bytes(std::span(&header, 1));
  const std::size_t got = read(0, bytes);
  if (got < EI_NIDENT ||
      std::memcmp(static_cast<const unsigned char*>(header.e_ident), ELFMAG, SELFMAG) != 0) {
    return std::nullopt;
  }
  layout file;
  file.native = got == bytes.size() && header.e_ident[EI_CLASS] == ELFCLASS64 &&
                header.e_ident[EI_DATA] == ELFDATA2LSB && header.e_machine == this_machine;
  if (!file.native || header.e_phentsize != sizeof(Elf64_Phdr) ||
      header.e_phnum > max_program_headers) {
    return file;
  }
  file.segments.resize(header.e_phnum);
  if (!read_values(read, header.e_phoff, file.segments)) {
    file.segments.clear();
  } else if (const Elf64_Phdr* const dynamic = file.segment(PT_DYNAMIC)) {
    file.dynamic = read_dynamic(read, *dynamic);
  }
  return file;
}

std::string read_text(const read_at& read, std::uint64_t offset) {
  std::array<char, max_text_bytes> text{};
  const std::size_t got = read(offset, std::as_writable_bytes(std::span(text)));
  const std::string_view bytes(text.data(), std::min(got, text.size()));
  const std::size_t end = bytes.find('\0');
  return end == std::string_view::npos ? std::string() : std::string(bytes.substr(0, end));
}

read_at reader_of(int file) {
  return [file](std::uint64_t offset, std::span<std::byte> into) -> std::size_t {
    if (offset > static_cast<std::uint64_t>(INT64_MAX)) {
      return 0;
    }
    const auto got = base::retry(
        [&] { return ::pread(file, into.data(), into.size(), static_cast<off_t>(offset)); });
    return got < 0 ? 0 : static_cast<std::size_t>(got);
  };
}

bool with_file(const std::string& path, const std::function<void(const read_at&)>& use) {
  // O_NONBLOCK: a hostile root may have a pipe there.
  const base::unique_fd file(
      base::retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  if (!file) {
    return false;
  }
  use(reader_of(file.get()));
  return true;
}

}  // namespace gpushm::elf
