// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "gpushm/export.hpp"

namespace gpushm {

/// How a mapping may be used. A promise of the importer that guards against mistakes, not against
/// attackers: whoever holds the descriptor can map it read-write (docs/threat-model.md).
enum class access : std::uint8_t { read = 0, read_write = 1 };

/// When the broker frees a segment. Values travel on the wire: never renumber.
enum class lifetime : std::uint8_t {
  leased = 0,      ///< when its last lease ends, also if nobody but its creator ever had one
  persistent = 1,  ///< when it is removed
};

/// What a mapped segment's owner can learn without a system call.
enum class segment_state : std::uint8_t {
  live = 0,
  removed = 1,        ///< the name is gone; this mapping stays valid
  exporter_gone = 2,  ///< the exporting process died; this mapping stays valid
  broker_gone = 3,    ///< the broker died; this mapping stays valid, the lease is gone
  unknown = 4,        ///< imported without a broker: nobody watches the exporter
};

/// How a segment's memory is made and travels. Values travel on the wire: never renumber.
enum class backend : std::uint8_t {
  host = 0,      ///< sealed memfds
  cuda_vmm = 1,  ///< cuMemCreate chunks, as descriptors
  cuda_ipc = 2,  ///< cudaMalloc memory, as a legacy handle; bound to its exporter
  cuda_pool = 3  ///< memory of an exportable pool; bound to its exporter
};

/// Kind of device. Values travel on the wire: never renumber.
enum class device_kind : std::uint8_t { host = 0, gpu = 1, mig = 2 };

/// How a broker knows that a process can write nothing any more, its GPU work included
/// (docs/sharing.md, "The fence"). Values travel on the wire: never renumber.
enum class fence : std::uint8_t {
  none = 0,      ///< it cannot: it waits for a documented time instead
  proven = 1,    ///< the process has ended, and no child can have its driver files
  unproven = 2,  ///< the process has ended; a child of it may have them
};

/// What the leases of a connection that ended without a goodbye wait for. Values travel on the
/// wire: never renumber.
enum class fence_wait : std::uint8_t {
  process = 0,     ///< for the end of the process
  descendant = 1,  ///< the process has ended; a descendant may have its driver files
  delay = 2,       ///< for the documented time to pass
};

[[nodiscard]] GPUSHM_API std::string_view to_string(access value) noexcept;
[[nodiscard]] GPUSHM_API std::string_view to_string(lifetime value) noexcept;
[[nodiscard]] GPUSHM_API std::string_view to_string(segment_state value) noexcept;
[[nodiscard]] GPUSHM_API std::string_view to_string(backend value) noexcept;
[[nodiscard]] GPUSHM_API std::string_view to_string(device_kind value) noexcept;
[[nodiscard]] GPUSHM_API std::string_view to_string(fence value) noexcept;
[[nodiscard]] GPUSHM_API std::string_view to_string(fence_wait value) noexcept;

/// Where a segment's memory lives. Same meaning in every process: ordinals, which
/// CUDA_VISIBLE_DEVICES changes, are not part of it.
struct device_id {
  device_kind kind = device_kind::host;
  std::string uuid;         ///< "GPU-…" or "MIG-…"; empty for the host
  std::string pci_address;  ///< "0000:18:00.0"; empty for the host
  std::int32_t minor = -1;  ///< N of /dev/nvidiaN; -1 when unknown or the host

  /// "host", or the UUID.
  [[nodiscard]] std::string text() const { return kind == device_kind::host ? "host" : uuid; }
  friend bool operator==(const device_id&, const device_id&) = default;
};

/// A broker's random 128-bit number, made when it starts. With a generation it identifies memory
/// for ever.
using epoch = std::array<std::uint8_t, 16>;

/// A timeout without an end, of every call that has one. Negative ones are zero.
inline constexpr std::chrono::milliseconds forever = std::chrono::milliseconds::max();

/// 56 bits, never 0, never used twice by one broker.
using generation = std::uint64_t;

inline constexpr std::size_t max_name_bytes = 255;              ///< of a segment's name, UTF-8
inline constexpr std::size_t max_metadata_bytes = 64UL * 1024;  ///< given to publish
inline constexpr std::uint64_t max_generation = (std::uint64_t{1} << 56U) - 1;

/// What a broker says of a segment.
struct segment_info {
  std::string name;
  gpushm::generation generation = 0;
  std::uint64_t size_bytes = 0;       ///< what was asked for
  std::uint64_t allocated_bytes = 0;  ///< what it takes, rounded up to the device's granularity
  std::uint32_t chunks = 0;           ///< physical allocations, one descriptor each
  gpushm::backend backend = gpushm::backend::host;
  gpushm::lifetime lifetime = gpushm::lifetime::leased;
  device_id device;
  bool published = false;
  segment_state state = segment_state::live;
  std::uint32_t leases = 0;       ///< connections that hold it, the creator's included
  std::uint32_t creator_uid = 0;  ///< as the broker sees it
  std::int32_t creator_pid = 0;   ///< as the broker sees it; 0 when it cannot
  bool creator_alive = false;     ///< the creator's connection is still there
  std::uint64_t metadata_bytes = 0;
  /// Of `leases`, those whose connection has ended without a goodbye; they end with their fence
  /// (docs/sharing.md).
  std::uint32_t ending = 0;
  std::int32_t ending_pid = 0;  ///< process of the oldest, as the broker sees it; 0 when it cannot
  std::chrono::milliseconds ending_for{0};
  fence_wait ending_waits = fence_wait::process;
};

/// What a broker says of itself.
struct broker_info {
  std::string socket_path;
  std::string domain;
  gpushm::epoch epoch{};
  std::uint32_t protocol_version = 0;
  std::int32_t pid = 0;  ///< as this process sees it; 0 when it cannot
  std::uint64_t max_segments = 0;
  std::uint64_t quota_bytes = 0;  ///< of the domain; 0 means no limit
  /// How the broker knows that this process can write nothing any more, once it has ended.
  gpushm::fence fence = gpushm::fence::none;
  std::chrono::milliseconds fence_delay{0};  ///< what it waits for where there is none
};

}  // namespace gpushm
