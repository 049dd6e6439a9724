// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "gpu/driver/devices.hpp"

namespace gpushm::cli {

/// GPU memory as cudaMalloc allocates it, as in programs that do not use gpushm.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class device_memory {
 public:
  /// `object` is named in errors. Throws `error`: driver_unavailable, driver_error, out_of_memory.
  device_memory(const driver::gpu& where, std::uint64_t size_bytes, std::string_view object);
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;
  ~device_memory();

  [[nodiscard]] void* data() const noexcept;

 private:
  cuda::CUcontext context_;
  cuda::CUdeviceptr first_ = 0;
};

}  // namespace gpushm::cli
