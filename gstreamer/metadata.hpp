// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::gstreamer {

/// A time that is not known.
inline constexpr std::uint64_t no_time = ~std::uint64_t{0};
/// An offset that is not known.
inline constexpr std::uint64_t no_offset = ~std::uint64_t{0};

/// The metadata of an item that is a GStreamer buffer (docs/gstreamer.md, "Format").
struct item_metadata {
  std::uint64_t size = 0;            ///< bytes of the slot that belong to the buffer
  std::uint64_t pts = no_time;       ///< ns
  std::uint64_t dts = no_time;       ///< ns
  std::uint64_t duration = no_time;  ///< ns
  std::uint64_t offset = no_offset;
  std::uint32_t flags = 0;  ///< of `known_flags`
  std::string caps;         ///< printable ASCII; empty: without caps
  friend bool operator==(const item_metadata&, const item_metadata&) = default;
};

/// Bits of `flags`; the values are those of GstBufferFlags and GstVideoBufferFlags. Stored: never
/// renumber.
enum item_flag : std::uint32_t {
  flag_decode_only = 1U << 5U,
  flag_discont = 1U << 6U,
  flag_resync = 1U << 7U,
  flag_corrupted = 1U << 8U,
  flag_marker = 1U << 9U,
  flag_header = 1U << 10U,
  flag_gap = 1U << 11U,
  flag_droppable = 1U << 12U,
  flag_delta_unit = 1U << 13U,
  flag_non_droppable = 1U << 16U,
  flag_interlaced = 1U << 20U,
  flag_top_field_first = 1U << 21U,
  flag_repeat_field = 1U << 22U,
  flag_one_field = 1U << 23U,
};
/// All of them. Others are neither written nor read.
inline constexpr std::uint32_t known_flags =
    flag_decode_only | flag_discont | flag_resync | flag_corrupted | flag_marker | flag_header |
    flag_gap | flag_droppable | flag_delta_unit | flag_non_droppable | flag_interlaced |
    flag_top_field_first | flag_repeat_field | flag_one_field;

inline constexpr std::uint8_t metadata_version = 1;
/// Without the caps.
inline constexpr std::size_t metadata_header_bytes = 56;
inline constexpr std::size_t max_metadata_bytes = 256;
inline constexpr std::size_t max_caps_bytes = max_metadata_bytes - metadata_header_bytes;

/// Returns `metadata_header_bytes` and the caps. Throws `std::length_error` if the caps are longer
/// than `max_caps_bytes`, `std::invalid_argument` if they are not printable ASCII.
[[nodiscard]] std::vector<std::byte> encode(const item_metadata& value);

/// Why metadata are not those of a buffer.
enum class metadata_fault : std::uint8_t {
  none,
  foreign,  ///< of a program that uses the channel for something else
  version,  ///< of a later version
  invalid,  ///< damaged, or made to harm
};
/// As text, for an error's cause.
[[nodiscard]] std::string_view to_text(metadata_fault value) noexcept;

/// Reads metadata, which may have been written by an attacker. `slot_bytes`: of the item's slot,
/// which the buffer's size must not exceed. Sets `value` if the result is `none`, and only then.
[[nodiscard]] metadata_fault decode(std::span<const std::byte> source,
                                    std::uint64_t slot_bytes,
                                    item_metadata& value);

}  // namespace gpushm::gstreamer
