// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

#include "base/files/unique_handle.hpp"
#include "gpu/driver/cuda.hpp"

namespace gpushm::driver {

/// Calls the driver if it is still usable, and logs a failure. For destructors.
template <typename Call>
void close_quietly(std::string_view name, Call&& call) noexcept {
  if (const cuda_driver* cu = cuda_driver::try_instance()) {
    cuda_driver::note(call(*cu), name);
  }
}

/// A range of device addresses.
struct device_range {
  cuda::CUdeviceptr pointer = 0;
  std::size_t size_bytes = 0;
  friend bool operator==(const device_range&, const device_range&) = default;
};

struct allocation_traits {
  using value_type = cuda::CUmemGenericAllocationHandle;
  static value_type empty() noexcept { return 0; }
  static void close(value_type value) noexcept {
    close_quietly("cuMemRelease", [&](const cuda_driver& cu) { return cu->cuMemRelease(value); });
  }
};
struct reservation_traits {
  using value_type = device_range;
  static value_type empty() noexcept { return {}; }
  static void close(value_type value) noexcept {
    close_quietly("cuMemAddressFree", [&](const cuda_driver& cu) {
      return cu->cuMemAddressFree(value.pointer, value.size_bytes);
    });
  }
};
struct mapping_traits {
  using value_type = device_range;
  static value_type empty() noexcept { return {}; }
  static void close(value_type value) noexcept {
    close_quietly("cuMemUnmap", [&](const cuda_driver& cu) {
      return cu->cuMemUnmap(value.pointer, value.size_bytes);
    });
  }
};

/// A retained primary context and its device.
struct primary_context_value {
  cuda::CUcontext context = nullptr;
  cuda::CUdevice device = cuda::device_invalid;
  friend bool operator==(const primary_context_value&, const primary_context_value&) = default;
};
struct primary_context_traits {
  using value_type = primary_context_value;
  static value_type empty() noexcept { return {}; }
  static void close(value_type value) noexcept {
    close_quietly("cuDevicePrimaryCtxRelease", [&](const cuda_driver& cu) {
      return cu->cuDevicePrimaryCtxRelease_v2(value.device);
    });
  }
};

// Thread-safety: distinct objects: safe; shared objects: unsafe. Moved-from is empty. Destruction
// does not wait for GPU work.
using unique_allocation = base::unique_handle<allocation_traits>;    ///< cuMemRelease
using unique_reservation = base::unique_handle<reservation_traits>;  ///< cuMemAddressFree
using unique_device_mapping = base::unique_handle<mapping_traits>;   ///< cuMemUnmap
using unique_primary_context = base::unique_handle<primary_context_traits>;

/// Retains the primary context of `device`; blocks while the driver creates it (about 150 ms the
/// first time in a process). Throws `error`: driver_unavailable, forked, driver_error,
/// out_of_memory.
[[nodiscard]] inline unique_primary_context retain_primary_context(cuda::CUdevice device,
                                                                   std::string_view operation,
                                                                   std::string_view object) {
  const cuda_driver& cu = cuda_driver::instance();
  primary_context_value value{nullptr, device};
  cuda_driver::check(cu->cuDevicePrimaryCtxRetain(&value.context, device),
                     operation,
                     object,
                     "cuDevicePrimaryCtxRetain");
  return unique_primary_context(value);
}

/// Makes `context` current on this thread, and restores the previous one at the end. Thread-safety:
/// distinct objects: safe, nested like scopes. Bound to the thread that created it.
class context_scope {
 public:
  /// Throws `error`: driver_unavailable, forked, driver_error.
  context_scope(cuda::CUcontext context, std::string_view operation, std::string_view object) {
    cuda_driver::check(cuda_driver::instance()->cuCtxPushCurrent_v2(context),
                       operation,
                       object,
                       "cuCtxPushCurrent");
  }
  context_scope(const context_scope&) = delete;
  context_scope& operator=(const context_scope&) = delete;
  ~context_scope() {
    close_quietly("cuCtxPopCurrent", [](const cuda_driver& cu) {
      cuda::CUcontext popped = nullptr;
      return cu->cuCtxPopCurrent_v2(&popped);
    });
  }
};

}  // namespace gpushm::driver
