// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/process/process.hpp"
#include "gpushm/types.hpp"

/// The bytes that describe shared memory to another process: in a file, a message, a rank exchange,
/// or through a broker that passes them on unread. Specified in docs/ticket.md; never change a
/// field's number or meaning.
namespace gpushm::wire {

/// The version that this code writes.
inline constexpr std::uint16_t ticket_version = 1;
/// The oldest version whose readers support what this code writes.
inline constexpr std::uint16_t oldest_ticket_reader = 1;
/// Maximum size of a ticket.
inline constexpr std::size_t max_ticket_bytes = 4096;

/// The result of cuIpcGetMemHandle, with what makes it safe in another PID namespace.
struct legacy_handle {
  std::array<std::byte, 64> bytes{};
  /// Offset of the exporter's PID in `bytes`, little-endian in 32 bits; nullopt if the exporter
  /// could not prove it on this handle. At most 60.
  std::optional<std::uint16_t> pid_offset;
  friend bool operator==(const legacy_handle&, const legacy_handle&) = default;
};

/// An allocation of a memory pool; the pool itself travels as a file descriptor.
struct pool_pointer {
  std::array<std::byte, 64> bytes{};  ///< from cuMemPoolExportPointer
  std::uint64_t pool = 0;             ///< the same for all allocations of one pool of the exporter
  friend bool operator==(const pool_pointer&, const pool_pointer&) = default;
};

/// A segment of a broker, which also has the file descriptors.
struct broker_reference {
  /// A path, or a file name without a slash: relative to the directory of the ticket's file.
  std::string socket_path;
  gpushm::epoch epoch{};
  std::string name;
  gpushm::generation generation = 0;
  friend bool operator==(const broker_reference&, const broker_reference&) = default;
};

/// A timeline without a broker: a word in a file of the exporter (docs/adr/0032). Descriptors are
/// numbers in the exporter.
struct word_reference {
  std::int32_t file = 0;          ///< of the page; not negative
  std::uint64_t file_system = 0;  ///< st_dev of the page
  std::uint64_t inode = 0;        ///< of the page
  std::int32_t life_pipe = 0;     ///< its read end; not negative
  std::uint32_t word = 0;         ///< below 512
  friend bool operator==(const word_reference&, const word_reference&) = default;
};

/// Memory of one process, and the ways to reach it; an importer picks one that it can use.
struct ticket {
  gpushm::backend backend = gpushm::backend::host;
  std::uint64_t size_bytes = 0;       ///< of the shared range; not 0
  std::uint64_t offset_bytes = 0;     ///< of the shared range within the allocation
  std::uint64_t allocated_bytes = 0;  ///< the whole allocation, or all chunks
  device_id device;
  base::process_identity exporter;
  std::uint64_t address = 0;    ///< of the shared range, in the exporter
  std::uint64_t buffer_id = 0;  ///< CU_POINTER_ATTRIBUTE_BUFFER_ID in the exporter; 0: unknown
  std::optional<legacy_handle> legacy;
  std::optional<pool_pointer> pool;
  std::optional<broker_reference> broker;
  std::optional<word_reference> word;  ///< of a timeline
  friend bool operator==(const ticket&, const ticket&) = default;
};

/// Throws `error` for operation "write ticket": invalid_argument for a value that `decode_ticket`
/// would reject, message_too_large if a string makes it longer than `max_ticket_bytes`. Any decoded
/// ticket can be encoded. Thread-safe.
[[nodiscard]] std::vector<std::byte> encode_ticket(const ticket& value);

/// Reads tickets of this version and of later versions that declare this version able to read them,
/// ignoring unknown fields. Safe on any bytes. Throws `error` for operation "read ticket":
/// invalid_ticket, unsupported_version. Thread-safe.
[[nodiscard]] ticket decode_ticket(std::span<const std::byte> bytes);

}  // namespace gpushm::wire
