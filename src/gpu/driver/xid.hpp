// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string_view>

namespace gpushm::driver {

/// The effect of an Xid on its GPU (NVIDIA, "Xid errors").
enum class xid_kind {
  application,  ///< a program made a mistake, or was killed; the GPU works
  contained,    ///< the GPU failed; only the programs that it killed are affected
  needs_reset,  ///< the GPU failed, and works again only after a reset or a reboot
};

struct known_xid {
  std::uint64_t number;
  std::string_view meaning;
  xid_kind kind;
};

/// The known Xids by number. Used by the device plugin's health check and by `gpushm doctor`.
inline constexpr auto known_xids = std::to_array<known_xid>({
    {13, "graphics engine exception", xid_kind::application},
    {31, "GPU memory page fault", xid_kind::application},
    {43, "a program's channel was stopped", xid_kind::application},
    {45, "a program's channel was removed", xid_kind::application},
    {46, "the GPU has stopped processing", xid_kind::needs_reset},
    {48, "uncorrectable memory error", xid_kind::needs_reset},
    {62, "internal microcontroller halt", xid_kind::needs_reset},
    {63, "a memory row was remapped", xid_kind::contained},
    {64, "a memory row could not be remapped", xid_kind::needs_reset},
    {68, "video engine exception", xid_kind::application},
    {74, "NVLink error", xid_kind::needs_reset},
    {79, "the GPU has fallen off the bus", xid_kind::needs_reset},
    {92, "high rate of corrected memory errors", xid_kind::needs_reset},
    {94, "contained memory error", xid_kind::contained},
    {95, "uncontained memory error", xid_kind::needs_reset},
    {109, "context switch timeout", xid_kind::application},
    {119, "the GPU's system processor (GSP) does not respond", xid_kind::needs_reset},
    {120, "error of the GPU's system processor (GSP)", xid_kind::needs_reset},
    {140, "unrecovered memory error", xid_kind::needs_reset},
    {143, "GPU initialization failure", xid_kind::needs_reset},
});

/// The GPU's memory is lost for good after this Xid.
inline constexpr std::uint64_t fallen_off_the_bus = 79;

/// Returns null if it is not in the list.
[[nodiscard]] constexpr const known_xid* find_xid(std::uint64_t number) noexcept {
  for (const known_xid& each : known_xids) {
    if (each.number == number) {
      return &each;
    }
  }
  return nullptr;
}

[[nodiscard]] constexpr bool is_xid_of(xid_kind kind, std::uint64_t number) noexcept {
  const known_xid* const known = find_xid(number);
  return known != nullptr && known->kind == kind;
}

[[nodiscard]] inline std::set<std::uint64_t> application_xids() {
  std::set<std::uint64_t> numbers;
  for (const known_xid& each : known_xids) {
    if (each.kind == xid_kind::application) {
      numbers.insert(each.number);
    }
  }
  return numbers;
}

}  // namespace gpushm::driver
