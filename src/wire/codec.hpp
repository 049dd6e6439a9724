// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "wire/messages.hpp"

namespace gpushm::wire {

/// One packet's bytes. Throws for what `decode` would refuse, because the peer would hang up:
/// `errc::message_too_large` when they would pass `max_packet_bytes` or a list has more or fewer
/// entries than the protocol allows, `errc::invalid_argument` for an enumerator out of range.
/// Thread-safe.
[[nodiscard]] std::vector<std::byte> encode(const message& value);

/// Reads a packet from a peer that is not trusted. Nothing when it is not a well-formed message of
/// a kind this version knows, when an enumerator or the epoch's length is out of range, when a list
/// is longer than the protocol allows, or when texts and lists, shared ones counted each time, pass
/// `max_packet_bytes` in all. Fields that are absent take their defaults. Never throws but for
/// memory.
[[nodiscard]] std::optional<message> decode(std::span<const std::byte> packet);

/// The id of a packet that there was no memory to decode; 0 when it is none. Allocates nothing.
[[nodiscard]] std::uint64_t id_of(std::span<const std::byte> packet) noexcept;

}  // namespace gpushm::wire
