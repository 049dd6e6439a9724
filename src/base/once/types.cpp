// SPDX-License-Identifier: Apache-2.0
#include "gpushm/types.hpp"

#include <string_view>

#include "base/report/c_interface.hpp"
#include "gpushm/client.hpp"
#include "gpushm/error.hpp"

namespace gpushm {

namespace {

// Switches without default: the compiler reports a missing enumerator.

std::string_view name_of(errc code) noexcept {
  switch (code) {
    case errc::invalid_argument:
      return "invalid_argument";
    case errc::no_such_segment:
      return "no_such_segment";
    case errc::already_exists:
      return "already_exists";
    case errc::permission_denied:
      return "permission_denied";
    case errc::timed_out:
      return "timed_out";
    case errc::broker_unreachable:
      return "broker_unreachable";
    case errc::broker_gone:
      return "broker_gone";
    case errc::protocol_error:
      return "protocol_error";
    case errc::unsupported_version:
      return "unsupported_version";
    case errc::quota_exceeded:
      return "quota_exceeded";
    case errc::out_of_memory:
      return "out_of_memory";
    case errc::too_many_segments:
      return "too_many_segments";
    case errc::too_many_descriptors:
      return "too_many_descriptors";
    case errc::too_many_connections:
      return "too_many_connections";
    case errc::too_many_requests:
      return "too_many_requests";
    case errc::device_not_found:
      return "device_not_found";
    case errc::device_not_visible:
      return "device_not_visible";
    case errc::driver_unavailable:
      return "driver_unavailable";
    case errc::driver_error:
      return "driver_error";
    case errc::wrong_descriptor_kind:
      return "wrong_descriptor_kind";
    case errc::wrong_descriptor_count:
      return "wrong_descriptor_count";
    case errc::size_mismatch:
      return "size_mismatch";
    case errc::forked:
      return "forked";
    case errc::peer_died:
      return "peer_died";
    case errc::stale_generation:
      return "stale_generation";
    case errc::message_too_large:
      return "message_too_large";
    case errc::address_in_use:
      return "address_in_use";
    case errc::ambiguous_domain:
      return "ambiguous_domain";
    case errc::already_published:
      return "already_published";
    case errc::segment_removed:
      return "segment_removed";
    case errc::system_error:
      return "system_error";
    case errc::not_exportable:
      return "not_exportable";
    case errc::pid_collision:
      return "pid_collision";
    case errc::gone_or_replaced:
      return "gone_or_replaced";
    case errc::invalid_ticket:
      return "invalid_ticket";
    case errc::peer_unreachable:
      return "peer_unreachable";
    case errc::share_exceeded:
      return "share_exceeded";
    case errc::writer_ending:
      return "writer_ending";
    case errc::cancelled:
      return "cancelled";
    case errc::value_out_of_range:
      return "value_out_of_range";
    case errc::too_many_waits:
      return "too_many_waits";
    case errc::invalid_file:
      return "invalid_file";
  }
  return "unknown";
}

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

uint32_t gpushm_version() {
  return GPUSHM_VERSION_MAJOR << 16U | GPUSHM_VERSION_MINOR << 8U | GPUSHM_VERSION_PATCH;
}
