// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "containers/discover/driver_files/findings.hpp"
#include "containers/discover/driver_files/root_view.hpp"
#include "containers/discover/gpus/drm_devices.hpp"
#include "containers/discover/gpus/generate.hpp"

namespace gpushm::discover {

/// A GPU of AMD or Intel, or a partition or virtual function of one: a device of a document.
struct drm_gpu {
  unsigned int index = 0;          ///< its number in the order of the maker's generator
  std::string unique_name;         ///< for name_strategy::uuid; empty: it has none
  std::string address;             ///< of its PCI device
  std::vector<std::string> nodes;  ///< "/dev/dri/card0", "/dev/dri/renderD128", "/dev/kfd"
};

/// The GPUs of one maker.
struct drm_gpus {
  std::vector<drm_gpu> gpus;
  std::string summary;  ///< "2 AMD GPUs"
  findings report;      ///< devices that are not described
};

/// AMD's GPUs and their partitions below `sys`, as ROCm numbers them: by bus address, then by
/// render node. Only those that the compute driver (KFD) lists.
[[nodiscard]] drm_gpus find_amd_gpus(const root_view& sys);

/// Intel's GPUs and their virtual functions below `sys`, by PCI address.
[[nodiscard]] drm_gpus find_intel_gpus(const root_view& sys);

/// Describes the GPUs of `options.source`, which is not NVIDIA. Throws `error`: no GPU, an unknown
/// device ID, or no usable device.
[[nodiscard]] generated generate_drm(const generate_options& options);

}  // namespace gpushm::discover
