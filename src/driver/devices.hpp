// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "driver/cuda_abi.hpp"
#include "gpushm/types.hpp"

namespace gpushm::driver {

/// A GPU or MIG instance that CUDA shows this process.
struct gpu {
  int ordinal = 0;  ///< as CUDA numbers them here; changes with CUDA_VISIBLE_DEVICES
  cuda::CUdevice handle = cuda::device_invalid;
  device_id id;
  std::string name;
  std::uint64_t total_bytes = 0;
};

/// $GPUSHM_PROC_ROOT, else "/proc"; $GPUSHM_DEV_ROOT, else "/dev". Tests set them.
[[nodiscard]] std::string proc_root();
[[nodiscard]] std::string dev_root();

/// The GPUs that CUDA shows this process, in CUDA's order; asked once a process. The first call
/// loads the driver. Thread-safe. Throws `error`: driver_unavailable, forked, driver_error.
[[nodiscard]] const std::vector<gpu>& visible_gpus();

/// The one of `gpus` that `text` names: an ordinal, or the UUID of a GPU or MIG instance, of which
/// a unique beginning with at least 8 characters after "GPU-" or "MIG-" is enough. Throws `error`:
/// device_not_found, listing what there is.
[[nodiscard]] const gpu& find_device(std::string_view text, std::span<const gpu> gpus);
/// The same among `visible_gpus()`.
[[nodiscard]] const gpu& find_device(std::string_view text);

/// The visible GPU with the UUID of `id`; null when CUDA does not show it to this process (memory
/// on it may still be importable). Throws as `visible_gpus`.
[[nodiscard]] const gpu* find_visible(const device_id& id);

}  // namespace gpushm::driver
