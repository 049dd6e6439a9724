// SPDX-License-Identifier: Apache-2.0
#pragma once

#if __cplusplus <= 201703L
#error gpushm needs C++20 (compile with -std=c++20)
// Not found: ends the compilation, instead of an error for each line below.
#include "gpushm needs C++20"
#endif

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "gpushm/gpushm.h"

// The C++ interface is a header-only layer over gpushm/gpushm.h: no C++ library type crosses the
// boundary of libgpushm.so. Programs and libraries compiled against different versions of these
// headers can coexist in one process: each version is a namespace.
namespace gpushm {
inline namespace v1 {

/// For these headers only.
namespace glue {

[[nodiscard]] constexpr std::string_view view(gpushm_string text) noexcept {
  return {text.data, text.size};
}
[[nodiscard]] constexpr gpushm_string text(std::string_view view) noexcept {
  return {view.data(), view.size()};
}

}  // namespace glue

/// How a mapping may be used. A promise of the importer that guards against mistakes, not against
/// attackers: any process that has the descriptor can map it read-write (docs/threat-model.md).
enum class access : std::uint8_t {
  read = GPUSHM_ACCESS_READ,
  read_write = GPUSHM_ACCESS_READ_WRITE,
};

/// When the broker frees a segment. As `gpushm_lifetime`. The values of this and the following
/// enumerations travel on the wire.
enum class lifetime : std::uint8_t {
  leased = GPUSHM_LIFETIME_LEASED,
  persistent = GPUSHM_LIFETIME_PERSISTENT,
};

/// State of a mapped segment, readable without a system call. As `gpushm_segment_state`.
enum class segment_state : std::uint8_t {
  live = GPUSHM_SEGMENT_LIVE,
  removed = GPUSHM_SEGMENT_REMOVED,
  exporter_gone = GPUSHM_SEGMENT_EXPORTER_GONE,
  broker_gone = GPUSHM_SEGMENT_BROKER_GONE,
  unknown = GPUSHM_SEGMENT_UNKNOWN,
  device_lost = GPUSHM_SEGMENT_DEVICE_LOST,
  suspended = GPUSHM_SEGMENT_SUSPENDED,
};

/// How a segment's memory is allocated and shared. As `gpushm_backend`.
enum class backend : std::uint8_t {
  host = GPUSHM_BACKEND_HOST,
  cuda_vmm = GPUSHM_BACKEND_CUDA_VMM,
  cuda_ipc = GPUSHM_BACKEND_CUDA_IPC,
  cuda_pool = GPUSHM_BACKEND_CUDA_POOL,
  signals = GPUSHM_BACKEND_SIGNALS,
  timeline = GPUSHM_BACKEND_TIMELINE,
  descriptor = GPUSHM_BACKEND_DESCRIPTOR,
};

/// What `segment::suspend` does with the memory. As `gpushm_suspend_mode`.
enum class suspend_mode : std::uint8_t {
  keep = GPUSHM_SUSPEND_KEEP,
  host = GPUSHM_SUSPEND_HOST,
  discard = GPUSHM_SUSPEND_DISCARD,
};

enum class device_kind : std::uint8_t {
  host = GPUSHM_DEVICE_HOST,
  gpu = GPUSHM_DEVICE_GPU,
  mig = GPUSHM_DEVICE_MIG,
};

/// How a broker determines that a process, including its GPU work, can no longer write. As
/// `gpushm_fence`.
enum class fence : std::uint8_t {
  none = GPUSHM_FENCE_NONE,
  proven = GPUSHM_FENCE_PROVEN,
  unproven = GPUSHM_FENCE_UNPROVEN,
};

/// The condition that the leases of a connection that ended without a goodbye message wait for. As
/// `gpushm_fence_wait`.
enum class fence_wait : std::uint8_t {
  process = GPUSHM_FENCE_WAIT_PROCESS,
  descendant = GPUSHM_FENCE_WAIT_DESCENDANT,
  delay = GPUSHM_FENCE_WAIT_DELAY,
};

/// As `gpushm_version_state`. Values are saved and travel on the wire: never renumber.
enum class version_state : std::uint8_t {
  building = GPUSHM_VERSION_BUILDING,
  published = GPUSHM_VERSION_PUBLISHED,
  ending = GPUSHM_VERSION_ENDING,
};

/// Why the memory of a segment is gone with its GPU. As `gpushm_loss_cause`.
enum class loss_cause : std::uint8_t {
  none = GPUSHM_LOSS_NONE,
  reported = GPUSHM_LOSS_REPORTED,
  xid = GPUSHM_LOSS_XID,
  unreachable = GPUSHM_LOSS_UNREACHABLE,
  reset = GPUSHM_LOSS_RESET,
};

[[nodiscard]] inline std::string_view to_string(access value) noexcept {
  return glue::view(gpushm_access_name(static_cast<gpushm_access>(value)));
}
[[nodiscard]] inline std::string_view to_string(lifetime value) noexcept {
  return glue::view(gpushm_lifetime_name(static_cast<gpushm_lifetime>(value)));
}
[[nodiscard]] inline std::string_view to_string(segment_state value) noexcept {
  return glue::view(gpushm_segment_state_name(static_cast<gpushm_segment_state>(value)));
}
[[nodiscard]] inline std::string_view to_string(backend value) noexcept {
  return glue::view(gpushm_backend_name(static_cast<gpushm_backend>(value)));
}
[[nodiscard]] inline std::string_view to_string(suspend_mode value) noexcept {
  return glue::view(gpushm_suspend_mode_name(static_cast<gpushm_suspend_mode>(value)));
}
[[nodiscard]] inline std::string_view to_string(device_kind value) noexcept {
  return glue::view(gpushm_device_kind_name(static_cast<gpushm_device_kind>(value)));
}
[[nodiscard]] inline std::string_view to_string(fence value) noexcept {
  return glue::view(gpushm_fence_name(static_cast<gpushm_fence>(value)));
}
[[nodiscard]] inline std::string_view to_string(fence_wait value) noexcept {
  return glue::view(gpushm_fence_wait_name(static_cast<gpushm_fence_wait>(value)));
}
[[nodiscard]] inline std::string_view to_string(version_state value) noexcept {
  return glue::view(gpushm_version_state_name(static_cast<gpushm_version_state>(value)));
}
[[nodiscard]] inline std::string_view to_string(loss_cause value) noexcept {
  return glue::view(gpushm_loss_cause_name(static_cast<gpushm_loss_cause>(value)));
}

/// Where a segment's memory is. Has the same meaning in every process: it does not include
/// ordinals, which CUDA_VISIBLE_DEVICES changes.
struct device_id {
  device_kind kind = device_kind::host;
  std::string uuid;         ///< "GPU-…" or "MIG-…"; empty for the host
  std::string pci_address;  ///< "0000:18:00.0"; empty for the host
  std::int32_t minor = -1;  ///< N of /dev/nvidiaN; -1 when unknown or the host

  /// "host", or the UUID.
  [[nodiscard]] std::string text() const { return kind == device_kind::host ? "host" : uuid; }
  friend bool operator==(const device_id&, const device_id&) = default;
};

/// A random 128-bit number that a broker generates when it starts. With a generation it identifies
/// memory forever.
using epoch = std::array<std::uint8_t, 16>;

/// A timeout without a limit, accepted by every call that has a timeout. With zero a call does not
/// wait; negative timeouts other than `default_timeout` are `errc::invalid_argument`.
inline constexpr std::chrono::milliseconds forever{GPUSHM_FOREVER};
/// The usual timeout of each call, which the comment of its C function tells.
inline constexpr std::chrono::milliseconds default_timeout{GPUSHM_DEFAULT_TIMEOUT};

/// 56 bits, never 0, never reused by a broker.
using generation = std::uint64_t;

inline constexpr std::size_t max_name_bytes =
    GPUSHM_MAX_NAME_BYTES;  ///< of a segment's name, UTF-8
inline constexpr std::size_t max_metadata_bytes = GPUSHM_MAX_METADATA_BYTES;  ///< given to publish
inline constexpr std::size_t max_ticket_bytes = GPUSHM_MAX_TICKET_BYTES;
inline constexpr std::size_t max_device_text_bytes = GPUSHM_MAX_DEVICE_TEXT_BYTES;
inline constexpr std::uint64_t max_generation = (std::uint64_t{1} << 56U) - 1;

/// A broker's information about a segment. As `gpushm_segment_info`.
struct segment_info {
  std::string name;
  gpushm::generation generation = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t allocated_bytes = 0;
  std::uint32_t chunks = 0;
  gpushm::backend backend = gpushm::backend::host;
  gpushm::lifetime lifetime = gpushm::lifetime::leased;
  device_id device;
  bool published = false;
  segment_state state = segment_state::live;
  std::uint32_t leases = 0;
  std::uint32_t creator_uid = 0;
  std::int32_t creator_pid = 0;
  bool creator_alive = false;
  std::uint64_t metadata_bytes = 0;
  std::uint32_t ending = 0;
  std::int32_t ending_pid = 0;
  std::chrono::milliseconds ending_for{0};
  fence_wait ending_waits = fence_wait::process;
};

/// A broker's information about itself. As `gpushm_broker_info`.
struct broker_info {
  std::string socket_path;
  std::string domain;
  gpushm::epoch epoch{};
  std::uint32_t protocol_version = 0;
  std::int32_t pid = 0;
  std::uint64_t max_segments = 0;
  std::uint64_t quota_bytes = 0;
  gpushm::fence fence = gpushm::fence::none;
  std::chrono::milliseconds fence_delay{0};
};

namespace glue {

/// Conversions from the C structures.
[[nodiscard]] inline device_id device_from(const gpushm_device& device) {
  device_id result;
  result.kind = static_cast<device_kind>(device.kind);
  result.uuid.assign(device.uuid, device.uuid_size);
  result.pci_address.assign(device.pci_address, device.pci_address_size);
  result.minor = device.minor;
  return result;
}

[[nodiscard]] inline epoch epoch_from(const gpushm_epoch& source) noexcept {
  epoch result{};
  for (std::size_t at = 0; at < result.size(); ++at) {
    result[at] = source.bytes[at];
  }
  return result;
}

[[nodiscard]] inline segment_info info_from(const gpushm_segment_info& info) {
  segment_info result;
  result.name.assign(info.name, info.name_size);
  result.generation = info.generation;
  result.size_bytes = info.size_bytes;
  result.allocated_bytes = info.allocated_bytes;
  result.chunks = info.chunks;
  result.backend = static_cast<gpushm::backend>(info.backend);
  result.lifetime = static_cast<gpushm::lifetime>(info.lifetime);
  result.device = device_from(info.device);
  result.published = info.published;
  result.state = static_cast<segment_state>(info.state);
  result.leases = info.leases;
  result.creator_uid = info.creator_uid;
  result.creator_pid = info.creator_pid;
  result.creator_alive = info.creator_alive;
  result.metadata_bytes = info.metadata_bytes;
  result.ending = info.ending;
  result.ending_pid = info.ending_pid;
  result.ending_for = std::chrono::milliseconds(info.ending_for_ms);
  result.ending_waits = static_cast<fence_wait>(info.ending_waits);
  return result;
}

[[nodiscard]] inline broker_info info_from(const gpushm_broker_info& info) {
  broker_info result;
  result.socket_path.assign(info.socket_path, info.socket_path_size);
  result.domain.assign(info.domain, info.domain_size);
  result.epoch = epoch_from(info.epoch);
  result.protocol_version = info.protocol_version;
  result.pid = info.pid;
  result.max_segments = info.max_segments;
  result.quota_bytes = info.quota_bytes;
  result.fence = static_cast<gpushm::fence>(info.fence);
  result.fence_delay = std::chrono::milliseconds(info.fence_delay_ms);
  return result;
}

/// A C structure with its size set and all else zero.
template <typename Structure>
[[nodiscard]] Structure sized() noexcept {
  Structure result{};
  result.struct_size = sizeof result;
  return result;
}

/// Deleter of a C handle.
template <auto End>
struct deleter {
  template <typename Handle>
  void operator()(Handle* handle) const noexcept {
    End(handle);
  }
};

}  // namespace glue

}  // namespace v1
}  // namespace gpushm
