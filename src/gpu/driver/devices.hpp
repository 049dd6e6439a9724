// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/driver/cuda_abi.hpp"
#include "gpushm/types.hpp"

namespace gpushm::driver {

/// A GPU or MIG instance that is visible to CUDA in this process.
struct gpu {
  int ordinal = 0;  ///< CUDA's ordinal in this process; depends on CUDA_VISIBLE_DEVICES
  cuda::CUdevice handle = cuda::device_invalid;
  device_id id;
  std::string name;
  std::uint64_t total_bytes = 0;
};

/// $GPUSHM_PROC_ROOT, default "/proc"; $GPUSHM_DEV_ROOT, default "/dev". Tests set them.
[[nodiscard]] std::string proc_root();
[[nodiscard]] std::string dev_root();

/// The GPUs visible to CUDA in this process, in CUDA's order; queried once per process. The first
/// call loads the driver. Thread-safe. Throws `error`: driver_unavailable, forked, driver_error.
[[nodiscard]] const std::vector<gpu>& visible_gpus();

/// The one of `gpus` that `text` identifies: an ordinal, also as "cuda:0", or the UUID of a GPU or
/// MIG instance, of which a unique prefix with at least 8 characters after "GPU-" or "MIG-" is
/// sufficient. Throws `error`: device_not_found, which lists the available devices.
[[nodiscard]] const gpu& find_device(std::string_view text, std::span<const gpu> gpus);
/// The same among `visible_gpus()`. Loads the driver only for text that can identify a GPU: other
/// text is device_not_found on every machine.
[[nodiscard]] const gpu& find_device(std::string_view text);

/// The visible GPU with the UUID of `id`; null if CUDA does not report it in this process (memory
/// on it may still be importable). Throws as `visible_gpus`.
[[nodiscard]] const gpu* find_visible(const device_id& id);

}  // namespace gpushm::driver
