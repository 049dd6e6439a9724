// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "containers/discover/driver_files/findings.hpp"
#include "containers/discover/driver_files/root_view.hpp"

namespace gpushm::discover {

/// A device in sysfs that has DRM nodes, or a display controller or accelerator without any.
struct drm_device {
  /// "0000:03:00.0"; "amdgpu_xcp_1" or "amdgpu_xcp.1" for a partition of an AMD GPU.
  std::string name;
  bool is_pci = false;
  std::uint32_t vendor = 0;        ///< PCI's number: 0x8086; 0 if unknown
  std::uint32_t device = 0;        ///< PCI's number; 0 if unknown
  std::string driver;              ///< "i915"; empty: none, or unknown
  std::vector<std::string> nodes;  ///< "card0", "renderD128": sorted
};

/// PCI numbers of makers.
constexpr std::uint32_t pci_vendor_amd = 0x1002;
constexpr std::uint32_t pci_vendor_intel = 0x8086;

/// The devices below `sys` (a view of /sys), PCI devices first, each kind sorted by name. Reads
/// bus/pci/devices, class/drm and devices/platform/amdgpu_xcp*, and skips what is not as the kernel
/// writes it. May block on the file system.
[[nodiscard]] std::vector<drm_device> find_drm_devices(const root_view& sys);

/// Reads a regular file inside `view`. Returns nullopt if it is missing, another kind of file, or
/// larger than `limit_bytes`.
[[nodiscard]] std::optional<std::string> read_file_in(const root_view& view,
                                                      std::string_view path,
                                                      std::size_t limit_bytes);

/// N of "renderDN"; nullopt for other names.
[[nodiscard]] std::optional<std::uint32_t> render_minor(std::string_view node) noexcept;

/// Whether `device` can be described: it has DRM nodes and, if its driver is known, one of
/// `drivers`. Otherwise adds it to the missing items of `report`.
[[nodiscard]] bool is_usable(const drm_device& device,
                             const std::vector<std::string_view>& drivers,
                             findings& report);

}  // namespace gpushm::discover
