// SPDX-License-Identifier: Apache-2.0
#include "gstreamer/metadata.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

namespace gpushm::gstreamer {

namespace {

constexpr std::array<char, 4> magic{'G', 'S', 'T', 'B'};
// Offsets; docs/gstreamer.md has the table.
constexpr std::size_t version_at = 4;
constexpr std::size_t reserved_at = 5;
constexpr std::size_t caps_bytes_at = 6;
constexpr std::size_t size_at = 8;
constexpr std::size_t pts_at = 16;
constexpr std::size_t dts_at = 24;
constexpr std::size_t duration_at = 32;
constexpr std::size_t offset_at = 40;
constexpr std::size_t flags_at = 48;
constexpr std::size_t more_reserved_at = 52;

void put(std::span<std::byte> target, std::size_t at, std::size_t bytes, std::uint64_t value) {
  for (std::size_t i = 0; i != bytes; ++i) {
    target[at + i] = static_cast<std::byte>(value >> (8 * i) & 0xFFU);
  }
}

std::uint64_t get(std::span<const std::byte> source, std::size_t at, std::size_t bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i != bytes; ++i) {
    value |= std::to_integer<std::uint64_t>(source[at + i]) << (8 * i);
  }
  return value;
}

bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

std::vector<std::byte> encode(const item_metadata& value) {
  if (value.caps.size() > max_caps_bytes) {
    throw std::length_error("the caps are too long");
  }
  if (!is_printable(value.caps)) {
    throw std::invalid_argument("the caps are not printable ASCII");
  }
  std::vector<std::byte> result(metadata_header_bytes + value.caps.size());
  const auto to_byte = [](char c) { return static_cast<std::byte>(c); };
  std::transform(magic.begin(), magic.end(), result.begin(), to_byte);
  put(result, version_at, 1, metadata_version);
  put(result, caps_bytes_at, 2, value.caps.size());
  put(result, size_at, 8, value.size);
  put(result, pts_at, 8, value.pts);
  put(result, dts_at, 8, value.dts);
  put(result, duration_at, 8, value.duration);
  put(result, offset_at, 8, value.offset);
  put(result, flags_at, 4, value.flags & known_flags);
  std::transform(
      value.caps.begin(), value.caps.end(), result.begin() + metadata_header_bytes, to_byte);
  return result;
}

std::string_view to_text(metadata_fault value) noexcept {
  switch (value) {
    case metadata_fault::none:
      return "the metadata are valid";
    case metadata_fault::foreign:
      return "the item was not published by gpushmsink";
    case metadata_fault::version:
      return "the item was published by a later version of gpushmsink";
    case metadata_fault::invalid:
      break;
  }
  return "the item's metadata are not valid";
}

metadata_fault decode(std::span<const std::byte> source,
                      std::uint64_t slot_bytes,
                      item_metadata& value) {
  const bool is_ours =
      source.size() > version_at &&
      std::equal(magic.begin(), magic.end(), source.begin(), [](char a, std::byte b) {
        return static_cast<std::byte>(a) == b;
      });
  if (!is_ours) {
    return metadata_fault::foreign;
  }
  const std::uint64_t version = get(source, version_at, 1);
  if (version > metadata_version) {
    return metadata_fault::version;
  }
  if (version == 0 || source.size() < metadata_header_bytes || source.size() > max_metadata_bytes ||
      get(source, reserved_at, 1) != 0 || get(source, more_reserved_at, 4) != 0 ||
      get(source, caps_bytes_at, 2) != source.size() - metadata_header_bytes) {
    return metadata_fault::invalid;
  }
  item_metadata read;
  read.size = get(source, size_at, 8);
  read.pts = get(source, pts_at, 8);
  read.dts = get(source, dts_at, 8);
  read.duration = get(source, duration_at, 8);
  read.offset = get(source, offset_at, 8);
  read.flags = static_cast<std::uint32_t>(get(source, flags_at, 4)) & known_flags;
  for (const std::byte each : source.subspan(metadata_header_bytes)) {
    read.caps += std::to_integer<char>(each);
  }
  if (read.size > slot_bytes || !is_printable(read.caps)) {
    return metadata_fault::invalid;
  }
  value = std::move(read);
  return metadata_fault::none;
}

}  // namespace gpushm::gstreamer
