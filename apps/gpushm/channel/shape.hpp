// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "gpushm/client.hpp"

namespace gpushm::cli {

/// The slots of a channel.
struct channel_shape {
  std::uint32_t slots = 0;
  std::uint64_t slot_bytes = 0;
  friend bool operator==(const channel_shape&, const channel_shape&) = default;
};

/// "4 of 64 KiB".
[[nodiscard]] std::string shape_text(const channel_shape& shape);
/// Returns the size of the channel's segment, in which the producer aligns each slot.
[[nodiscard]] std::uint64_t segment_bytes(const channel_shape& shape);

/// The metadata of a segment that `gpushm channel create` has made.
[[nodiscard]] std::string to_metadata(const channel_shape& shape);
/// Returns nullopt if they are other metadata.
[[nodiscard]] std::optional<channel_shape> shape_in(std::span<const std::byte> metadata);

/// The shape of an existing channel, from its producer, also one that has ended, or from the
/// metadata; nullopt if neither is known. Does not throw if the segment cannot be opened here.
[[nodiscard]] std::optional<channel_shape> known_shape(client& broker, const std::string& name);

}  // namespace gpushm::cli
