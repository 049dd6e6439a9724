// SPDX-License-Identifier: Apache-2.0
#include "gpushm/types.hpp"

#include <array>
#include <cstddef>
#include <string_view>

#include "base/report/c_interface.hpp"
#include "gpushm/client.hpp"
#include "gpushm/error.hpp"

namespace gpushm {

namespace {

/// The names of codes, indexed by their values.
constexpr auto errc_names = std::to_array<std::string_view>({
    // clang-format off
    // begin: scripts/error_codes.py
    "unknown", "invalid_argument", "no_such_segment", "already_exists", "permission_denied",
    "timed_out", "broker_unreachable", "broker_gone", "protocol_error", "unsupported_version",
    "quota_exceeded", "out_of_memory", "too_many_segments", "too_many_descriptors",
    "too_many_connections", "too_many_requests", "device_not_found", "device_not_visible",
    "driver_unavailable", "driver_error", "wrong_descriptor_kind", "wrong_descriptor_count",
    "size_mismatch", "forked", "peer_died", "stale_generation", "message_too_large",
    "address_in_use", "ambiguous_domain", "unknown", "already_published", "segment_removed",
    "system_error", "not_exportable", "pid_collision", "gone_or_replaced", "invalid_ticket",
    "peer_unreachable", "share_exceeded", "writer_ending", "cancelled", "value_out_of_range",
    "too_many_waits", "invalid_file", "not_supported", "segment_busy",
    // end: scripts/error_codes.py
    // clang-format on
});

std::string_view name_of(errc code) noexcept {
  const auto value = static_cast<std::size_t>(code);
  return value < errc_names.size() ? errc_names[value] : "unknown";
}

// Switches without default: the compiler reports a missing enumerator.

std::string_view name_of(access value) noexcept {
  switch (value) {
    case access::read:
      return "read";
    case access::read_write:
      return "read-write";
  }
  return "unknown";
}

std::string_view name_of(lifetime value) noexcept {
  switch (value) {
    case lifetime::leased:
      return "leased";
    case lifetime::persistent:
      return "persistent";
  }
  return "unknown";
}

std::string_view name_of(segment_state value) noexcept {
  switch (value) {
    case segment_state::live:
      return "live";
    case segment_state::removed:
      return "removed";
    case segment_state::exporter_gone:
      return "exporter-gone";
    case segment_state::broker_gone:
      return "broker-gone";
    case segment_state::unknown:
      return "unknown";
    case segment_state::device_lost:
      return "device-lost";
    case segment_state::suspended:
      return "suspended";
  }
  return "unknown";
}

std::string_view name_of(backend value) noexcept {
  switch (value) {
    case backend::host:
      return "host";
    case backend::cuda_vmm:
      return "cuda-vmm";
    case backend::cuda_ipc:
      return "cuda-ipc";
    case backend::signals:
      return "signals";
    case backend::timeline:
      return "timeline";
    case backend::descriptor:
      return "descriptor";
    case backend::cuda_pool:
      return "cuda-pool";
  }
  return "unknown";
}

std::string_view name_of(suspend_mode value) noexcept {
  switch (value) {
    case suspend_mode::keep:
      return "keep";
    case suspend_mode::host:
      return "host";
    case suspend_mode::discard:
      return "discard";
  }
  return "unknown";
}

std::string_view name_of(device_kind value) noexcept {
  switch (value) {
    case device_kind::host:
      return "host";
    case device_kind::gpu:
      return "gpu";
    case device_kind::mig:
      return "mig";
  }
  return "unknown";
}

std::string_view name_of(fence value) noexcept {
  switch (value) {
    case fence::none:
      return "none";
    case fence::proven:
      return "proven";
    case fence::unproven:
      return "unproven";
  }
  return "unknown";
}

std::string_view name_of(fence_wait value) noexcept {
  switch (value) {
    case fence_wait::process:
      return "process";
    case fence_wait::descendant:
      return "descendant";
    case fence_wait::delay:
      return "delay";
  }
  return "unknown";
}

std::string_view name_of(event_kind value) noexcept {
  switch (value) {
    case event_kind::published:
      return "published";
    case event_kind::opened:
      return "opened";
    case event_kind::released:
      return "released";
    case event_kind::removed:
      return "removed";
    case event_kind::peer_died:
      return "peer-died";
    case event_kind::resync:
      return "resync";
    case event_kind::unfenced:
      return "unfenced";
    case event_kind::alias_moved:
      return "alias-moved";
  }
  return "unknown";
}

std::string_view name_of(version_state value) noexcept {
  switch (value) {
    case version_state::building:
      return "building";
    case version_state::published:
      return "published";
    case version_state::ending:
      return "ending";
  }
  return "unknown";
}

std::string_view name_of(loss_cause value) noexcept {
  switch (value) {
    case loss_cause::none:
      return "none";
    case loss_cause::reported:
      return "reported";
    case loss_cause::xid:
      return "xid";
    case loss_cause::unreachable:
      return "unreachable";
    case loss_cause::reset:
      return "reset";
  }
  return "unknown";
}

/// The name of a C enumerator, which may be any number.
template <typename Enum>
gpushm_string name_of_any(int value) noexcept {
  const auto known = static_cast<Enum>(value);
  return base::c_text(static_cast<int>(known) == value ? name_of(known) : "unknown");
}

}  // namespace

}  // namespace gpushm

gpushm_string gpushm_errc_name(gpushm_errc value) {
  return gpushm::name_of_any<gpushm::errc>(value);
}
gpushm_string gpushm_access_name(gpushm_access value) {
  return gpushm::name_of_any<gpushm::access>(value);
}
gpushm_string gpushm_lifetime_name(gpushm_lifetime value) {
  return gpushm::name_of_any<gpushm::lifetime>(value);
}
gpushm_string gpushm_segment_state_name(gpushm_segment_state value) {
  return gpushm::name_of_any<gpushm::segment_state>(value);
}
gpushm_string gpushm_backend_name(gpushm_backend value) {
  return gpushm::name_of_any<gpushm::backend>(value);
}
gpushm_string gpushm_suspend_mode_name(gpushm_suspend_mode value) {
  return gpushm::name_of_any<gpushm::suspend_mode>(value);
}
gpushm_string gpushm_device_kind_name(gpushm_device_kind value) {
  return gpushm::name_of_any<gpushm::device_kind>(value);
}
gpushm_string gpushm_fence_name(gpushm_fence value) {
  return gpushm::name_of_any<gpushm::fence>(value);
}
gpushm_string gpushm_fence_wait_name(gpushm_fence_wait value) {
  return gpushm::name_of_any<gpushm::fence_wait>(value);
}
gpushm_string gpushm_event_kind_name(gpushm_event_kind value) {
  return gpushm::name_of_any<gpushm::event_kind>(value);
}
gpushm_string gpushm_version_state_name(gpushm_version_state value) {
  return gpushm::name_of_any<gpushm::version_state>(value);
}
gpushm_string gpushm_loss_cause_name(gpushm_loss_cause value) {
  return gpushm::name_of_any<gpushm::loss_cause>(value);
}

uint32_t gpushm_version() {
  return GPUSHM_VERSION_MAJOR << 16U | GPUSHM_VERSION_MINOR << 8U | GPUSHM_VERSION_PATCH;
}
