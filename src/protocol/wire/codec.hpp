// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "protocol/wire/messages.hpp"

namespace gpushm::wire {

/// Encodes one packet. Throws for messages that `decode` would reject, because the peer would
/// disconnect: `errc::message_too_large` if the packet would exceed `max_packet_bytes` or a list
/// has more or fewer entries than the protocol allows, `errc::invalid_argument` for an enumerator
/// out of range. Thread-safe.
[[nodiscard]] std::vector<std::byte> encode(const message& value);

/// Decodes a packet from an untrusted peer. Returns nullopt if it is not a well-formed message of a
/// type known to this version, if an enumerator or the epoch's length is out of range, if a list is
/// longer than the protocol allows, or if strings and lists, with shared ones counted each time,
/// exceed `max_packet_bytes` in total. Absent fields take their defaults. Throws only
/// std::bad_alloc.
[[nodiscard]] std::optional<message> decode(std::span<const std::byte> packet);

/// The id of a packet that could not be decoded for lack of memory; 0 if it is not a packet.
/// Allocates nothing.
[[nodiscard]] std::uint64_t id_of(std::span<const std::byte> packet) noexcept;

}  // namespace gpushm::wire
