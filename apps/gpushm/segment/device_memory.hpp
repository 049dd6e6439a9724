// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "driver/devices.hpp"

namespace gpushm::cli {

/// Memory of a GPU as cudaMalloc allocates it: what programs have that know nothing of gpushm.
///
/// Distinct objects: safe. Shared objects: unsafe.
class device_memory {
 public:
  /// `object` goes into errors. Throws `error`: driver_unavailable, driver_error, out_of_memory.
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
