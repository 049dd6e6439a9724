// SPDX-License-Identifier: Apache-2.0
#include "containers/elf/ld_cache.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace gpushm::elf {

namespace {

constexpr std::string_view old_magic = "ld.so-1.7.0";
constexpr std::size_t old_header_bytes = 16;  // magic with its NUL, number of entries
constexpr std::size_t old_entry_bytes = 12;   // flags, key, value
constexpr std::string_view magic = "glibc-ld.so.cache1.1";
constexpr std::size_t header_bytes = 48;  // magic, two lengths, byte order, the rest unused here
constexpr std::size_t texts_length_at = 24;
constexpr std::size_t byte_order_at = 28;
constexpr std::size_t extensions_at = 32;
constexpr std::size_t entry_bytes = 24;  // flags, key, value, OS version, hardware capabilities
constexpr std::size_t header_alignment = 8;

constexpr std::size_t max_text_bytes = 4096;  // PATH_MAX
constexpr std::uint8_t other_byte_order = 3;  // cache_file_new_flags_endian_big

// Low byte: kind of object (1 and 3 are ELF, for libc5 and libc6); next byte: architecture.
constexpr std::uint32_t elf_kind = 0x0001;
constexpr std::uint32_t architecture_mask = 0xff00;
#if defined(__x86_64__)
constexpr std::uint32_t this_architecture = 0x0300;
#elif defined(__aarch64__)
constexpr std::uint32_t this_architecture = 0x0a00;
#else
#error "unknown architecture flag for ld.so.cache"
#endif

std::uint32_t number_at(std::string_view bytes, std::size_t offset) {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// The string at an offset; empty when it is out of bounds or longer than any path: entries may
// share bytes, and a small file could expand to gigabytes.
std::string_view text_at(std::string_view bytes, std::uint32_t offset) {
  if (offset >= bytes.size()) {
    return {};
  }
  const std::string_view text = bytes.substr(offset, max_text_bytes);
  const std::size_t end = text.find('\0');
  return end == std::string_view::npos ? std::string_view() : text.substr(0, end);
}

// The part after the old format, which some distributions still put first.
std::string_view after_old_format(std::string_view bytes) {
  if (!bytes.starts_with(old_magic) || bytes.size() < old_header_bytes) {
    return bytes;
  }
  const std::uint64_t count = number_at(bytes, old_header_bytes - sizeof(std::uint32_t));
  const std::uint64_t end = old_header_bytes + count * old_entry_bytes;
  const std::uint64_t next = (end + header_alignment - 1) / header_alignment * header_alignment;
  return next <= bytes.size() ? bytes.substr(static_cast<std::size_t>(next)) : std::string_view();
}

// The cache from its header on; empty without a known header.
std::optional<std::string_view> cache_in(std::span<const std::byte> bytes) {
  const std::string_view cache =
      after_old_format(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  if (cache.size() < header_bytes || !cache.starts_with(magic) ||
      (static_cast<std::uint8_t>(cache[byte_order_at]) & 3U) == other_byte_order) {
    return std::nullopt;
  }
  return cache;
}

}  // namespace

std::optional<std::vector<ld_cache_entry>> parse_ld_cache(std::span<const std::byte> bytes) {
  const auto found_cache = cache_in(bytes);
  if (!found_cache) {
    return std::nullopt;
  }
  const std::string_view cache = *found_cache;
  const std::size_t count = std::min<std::size_t>(number_at(cache, magic.size()),
                                                  (cache.size() - header_bytes) / entry_bytes);
  std::vector<ld_cache_entry> entries;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t offset = header_bytes + i * entry_bytes;
    const std::uint32_t flags = number_at(cache, offset);
    if ((flags & elf_kind) == 0 || (flags & architecture_mask) != this_architecture) {
      continue;
    }
    const std::string_view name = text_at(cache, number_at(cache, offset + 4));
    const std::string_view path = text_at(cache, number_at(cache, offset + 8));
    if (!name.empty() && path.starts_with('/')) {
      entries.push_back({std::string(name), std::string(path)});
    }
  }
  return entries;
}

bool is_ld_cache(std::span<const std::byte> bytes) noexcept {
  const auto cache = cache_in(bytes);
  if (!cache) {
    return false;
  }
  const std::uint64_t count = number_at(*cache, magic.size());
  const std::uint64_t texts_at = header_bytes + count * entry_bytes;
  if (texts_at + number_at(*cache, texts_length_at) > cache->size() ||
      number_at(*cache, extensions_at) > cache->size()) {
    return false;
  }
  for (std::size_t offset = header_bytes; offset < texts_at; offset += entry_bytes) {
    for (const std::size_t pointer : {offset + 4, offset + 8}) {
      const std::uint32_t text = number_at(*cache, pointer);
      if (text < texts_at || text_at(*cache, text).empty()) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace gpushm::elf
