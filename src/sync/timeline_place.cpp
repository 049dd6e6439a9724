// SPDX-License-Identifier: Apache-2.0
#include "sync/timeline_place.hpp"

#include <algorithm>

#include "sync/timeline_page.hpp"

namespace gpushm::sync {

namespace {

// u64 generation, u32 first, u32 count, little endian; then the name.
constexpr std::size_t head_bytes = 16;

template <typename Number>
void put(std::vector<std::byte>& target, Number value) {
  for (std::size_t i = 0; i != sizeof value; ++i) {
    target.push_back(static_cast<std::byte>(value >> (8U * i)));
  }
}

template <typename Number>
Number take(std::span<const std::byte>& bytes) {
  Number value = 0;
  for (std::size_t i = 0; i != sizeof value; ++i) {
    value |= static_cast<Number>(std::to_integer<Number>(bytes[i]) << (8U * i));
  }
  bytes = bytes.subspan(sizeof value);
  return value;
}

}  // namespace

std::vector<std::byte> encode(const timeline_place& place) {
  std::vector<std::byte> result;
  result.reserve(head_bytes + place.page.size());
  put(result, place.generation);
  put(result, place.first);
  put(result, place.count);
  const auto name = std::as_bytes(std::span(place.page));
  result.insert(result.end(), name.begin(), name.end());
  return result;
}

std::optional<timeline_place> decode_place(std::span<const std::byte> ticket) {
  if (ticket.size() <= head_bytes || ticket.size() > head_bytes + max_name_bytes) {
    return std::nullopt;
  }
  timeline_place result;
  result.generation = take<std::uint64_t>(ticket);
  result.first = take<std::uint32_t>(ticket);
  result.count = take<std::uint32_t>(ticket);
  if (result.generation == 0 || result.generation > max_generation || result.count == 0 ||
      result.first >= words_per_page || result.count > words_per_page - result.first) {
    return std::nullopt;
  }
  result.page.resize(ticket.size());
  std::transform(ticket.begin(), ticket.end(), result.page.begin(), [](std::byte each) {
    return static_cast<char>(each);
  });
  return result;
}

}  // namespace gpushm::sync
