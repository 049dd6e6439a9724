// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/channel/item_header.hpp"

#include <algorithm>
#include <cstring>

namespace gpushm::cli {

namespace {

constexpr std::uint64_t magic = 0x6D65'7469'4D53'4750ULL;  // "PGSMitem"
constexpr std::uint32_t version = 1;

// A producer and its consumers are processes of one machine: no other byte order occurs. A later
// version may append.
struct stored {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t content;
  std::uint64_t length;
  std::uint64_t sent_ns;
  std::uint64_t check;
  std::uint64_t number;
  std::uint64_t run;
};
static_assert(sizeof(stored) == item_header_bytes);

}  // namespace

std::array<std::byte, item_header_bytes> encode(const item_header& header) {
  const stored stored{magic,
                      version,
                      static_cast<std::uint32_t>(header.content),
                      header.length,
                      header.sent_ns,
                      header.check,
                      header.number,
                      header.run};
  std::array<std::byte, item_header_bytes> bytes{};
  std::memcpy(bytes.data(), &stored, sizeof stored);
  return bytes;
}

header_kind decode(std::span<const std::byte> metadata, item_header& header) {
  stored stored{};
  if (metadata.size() < sizeof stored.magic) {
    return header_kind::other;
  }
  std::memcpy(&stored, metadata.data(), std::min(metadata.size(), sizeof stored));
  if (stored.magic != magic) {
    return header_kind::other;
  }
  const auto content = static_cast<item_content>(stored.content);
  if (metadata.size() < sizeof stored || stored.version != version ||
      (content != item_content::pattern && content != item_content::bytes)) {
    return header_kind::unknown;
  }
  header = {content, stored.length, stored.sent_ns, stored.check, stored.number, stored.run};
  return header_kind::known;
}

}  // namespace gpushm::cli
