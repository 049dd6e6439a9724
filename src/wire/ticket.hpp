// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/process.hpp"
#include "gpushm/types.hpp"

/// The bytes that describe shared memory to another process: in a file, a message, a rank exchange,
/// or through a broker that passes them on unread. docs/ticket.md specifies them; never change
/// a field's number or meaning.
namespace gpushm::wire {

/// The version that this code writes.
inline constexpr std::uint16_t ticket_version = 1;
/// The oldest version whose readers understand what this code writes.
inline constexpr std::uint16_t oldest_ticket_reader = 1;
/// Longest ticket that is written or read.
inline constexpr std::size_t max_ticket_bytes = 4096;

/// What cuIpcGetMemHandle gave, with what makes it safe in another PID namespace.
struct legacy_handle {
  std::array<std::byte, 64> bytes{};
  /// Where in `bytes` the exporter's PID stands, little-endian in 32 bits; nothing when the
  /// exporter could not prove it on this handle. At most 60.
  std::optional<std::uint16_t> pid_offset;
  friend bool operator==(const legacy_handle&, const legacy_handle&) = default;
};

/// An allocation of a memory pool; the pool itself travels as a file descriptor.
struct pool_pointer {
  std::array<std::byte, 64> bytes{};  ///< what cuMemPoolExportPointer gave
  std::uint64_t pool = 0;             ///< the same for all allocations of one pool of the exporter
  friend bool operator==(const pool_pointer&, const pool_pointer&) = default;
};

/// A segment of a broker, which also has what travels as file descriptors.
struct broker_reference {
  /// A path, or a file name without a slash: beside the file that the ticket was read from.
  std::string socket_path;
  gpushm::epoch epoch{};
  std::string name;
  gpushm::generation generation = 0;
  friend bool operator==(const broker_reference&, const broker_reference&) = default;
};

/// Memory of one process, and the ways that lead to it; an importer takes the one it can use.
struct ticket {
  gpushm::backend backend = gpushm::backend::host;
  std::uint64_t size_bytes = 0;       ///< of what is shared; not 0
  std::uint64_t offset_bytes = 0;     ///< of that within the allocation
  std::uint64_t allocated_bytes = 0;  ///< the whole allocation, all chunks together
  device_id device;
  base::process_identity exporter;
  std::uint64_t address = 0;    ///< of what is shared, in the exporter
  std::uint64_t buffer_id = 0;  ///< CU_POINTER_ATTRIBUTE_BUFFER_ID in the exporter; 0: not known
  std::optional<legacy_handle> legacy;
  std::optional<pool_pointer> pool;
  std::optional<broker_reference> broker;
  friend bool operator==(const ticket&, const ticket&) = default;
};

/// Throws `error` for operation "write ticket": invalid_argument for a value that
/// `decode_ticket` would refuse, message_too_large when a text makes it longer than
/// `max_ticket_bytes`. Whatever was decoded can be encoded. Thread-safe.
[[nodiscard]] std::vector<std::byte> encode_ticket(const ticket& value);

/// Reads bytes of this version and of later ones that say that this version can read them, leaving
/// out what it does not know. Safe on any bytes. Throws `error` for operation "read ticket":
/// invalid_ticket, unsupported_version. Thread-safe.
[[nodiscard]] ticket decode_ticket(std::span<const std::byte> bytes);

}  // namespace gpushm::wire
