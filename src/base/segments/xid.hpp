// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

namespace gpushm::base {

/// The effect of an Xid on its GPU. By NVIDIA, "Xid Errors", "Analyzing Xid Errors with the Xid
/// Catalog" (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), column "Immediate
/// Action".
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

/// Returns null if it is not in the list.
[[nodiscard]] constexpr const known_xid* find_xid(std::uint64_t number) noexcept {
  for (const known_xid& each : known_xids) {
    if (each.number == number) {
      return &each;
    }
  }
  return nullptr;
}

/// "Xid 79 (the GPU has fallen off the bus)"; without a meaning if it is not in the list.
[[nodiscard]] inline std::string xid_text(std::uint64_t number) {
  const known_xid* const known = find_xid(number);
  std::string text = "Xid " + std::to_string(number);
  if (known != nullptr) {
    text.append(" (").append(known->meaning).append(")");
  }
  return text;
}

[[nodiscard]] constexpr bool is_xid_of(xid_kind kind, std::uint64_t number) noexcept {
  const known_xid* const known = find_xid(number);
  return known != nullptr && known->kind == kind;
}

/// True if what is in the GPU's memory is gone, or can be wrong without a program's noticing it,
/// until the GPU is reset, which erases it. In the catalog:
///   - 79: the GPU cannot be reached any longer (RESTART_BM);
///   - 95: a memory error that is not contained, so that it affects multiple programs, which can
///     only start again after a reset (RESET_GPU);
///   - 140: an error in the memory that the driver could not correct, nor take the memory out of
///     use (RESET_GPU).
/// All others leave the contents as they are, or end the programs whose memory they hit: 48 is
/// followed by 94 (contained) or 95.
[[nodiscard]] constexpr bool is_fatal_for_memory(std::uint64_t number) noexcept {
  return number == 79 || number == 95 || number == 140;
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

}  // namespace gpushm::base
