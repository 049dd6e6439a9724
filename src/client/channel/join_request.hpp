// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "channel/producer_table.hpp"
#include "client/timeline/timeline_pages.hpp"
#include "gpushm/types.hpp"

namespace gpushm::client_detail {

/// Returns the table behind the timelines of a producer's page; nullopt if there is none.
[[nodiscard]] inline std::optional<channel::table_view> table_in(const mapped_page& page) {
  return channel::table_view::of(page.page(), page.extra(), page.extra_bytes());
}

/// A consumer's request to join: the metadata of its timelines.
struct join_request {
  channel::consumer_mode mode = channel::consumer_mode::block;
  std::uint32_t depth = 0;          ///< of mode `share`: items that it may have at once
  gpushm::generation producer = 0;  ///< of the page of the producer that is to admit it
};

/// One byte each for mode and depth (0 but for `share`), eight for the producer, little-endian.
[[nodiscard]] inline std::vector<std::byte> encode(const join_request& request) {
  const bool has_depth = request.mode == channel::consumer_mode::share;
  std::vector<std::byte> result{static_cast<std::byte>(request.mode),
                                static_cast<std::byte>(has_depth ? request.depth : 0)};
  for (unsigned shift = 0; shift != 64; shift += 8) {
    result.push_back(static_cast<std::byte>(request.producer >> shift));
  }
  return result;
}

/// Returns nullopt if these bytes, which another process has chosen, are not a request.
[[nodiscard]] inline std::optional<join_request> decode_join_request(
    std::span<const std::byte> bytes) {
  constexpr std::size_t join_request_bytes = 10;
  if (bytes.size() != join_request_bytes ||
      bytes[0] > static_cast<std::byte>(channel::consumer_mode::share)) {
    return std::nullopt;
  }
  join_request result{
      static_cast<channel::consumer_mode>(bytes[0]), std::to_integer<std::uint32_t>(bytes[1]), 0};
  for (std::size_t i = join_request_bytes; i != 2; --i) {
    result.producer = result.producer << 8U | std::to_integer<gpushm::generation>(bytes[i - 1]);
  }
  return result;
}

}  // namespace gpushm::client_detail
