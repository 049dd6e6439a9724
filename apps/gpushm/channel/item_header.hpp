// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gpushm::cli {

/// How the bytes of an item are checked. Stored: never renumber.
enum class item_content : std::uint32_t {
  pattern = 1,  ///< `make_pattern` with the seed `check`
  bytes = 2,    ///< any; `check` is their CRC-32C
};

/// The metadata that `gpushm channel pub` gives to each item (docs/cli.md).
struct item_header {
  item_content content = item_content::pattern;
  std::uint64_t length = 0;   ///< bytes of the slot that belong to the item
  std::uint64_t sent_ns = 0;  ///< CLOCK_MONOTONIC, which all processes of a node share
  std::uint64_t check = 0;
  std::uint64_t number = 0;  ///< of the item: metadata of another one are detected
  std::uint64_t run = 0;     ///< random; the same for all items of one `pub`
  friend bool operator==(const item_header&, const item_header&) = default;
};

inline constexpr std::size_t item_header_bytes = 56;
[[nodiscard]] std::array<std::byte, item_header_bytes> encode(const item_header& header);

/// What the metadata of an item are.
enum class header_kind : std::uint8_t {
  known,    ///< of `pub`
  other,    ///< of another program
  unknown,  ///< of another version of `pub`
};
/// Sets `header` if it is known.
[[nodiscard]] header_kind decode(std::span<const std::byte> metadata, item_header& header);

}  // namespace gpushm::cli
