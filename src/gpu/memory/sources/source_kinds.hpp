// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "gpu/driver/cuda_abi.hpp"
#include "gpu/memory/sources/source.hpp"

namespace gpushm::memory {

/// The driver's attributes of an address.
struct pointer_facts {
  cuda::CUdeviceptr address = 0;
  cuda::CUdeviceptr range_start = 0;  ///< of the allocation; for virtual memory, of the reservation
  std::uint64_t range_bytes = 0;
  std::uint64_t buffer_id = 0;
  cuda::CUcontext context = nullptr;  ///< null for memory that belongs to no context
  cuda::CUmemoryPool pool = nullptr;
  device_id device;
  cuda::CUdevice device_handle = cuda::device_invalid;
  bool on_host = false;
  bool managed = false;
  bool legacy_capable = false;
  bool exports_descriptors = false;
};

/// The chunks of virtual memory that contain a range. Throws not_exportable, driver_error.
[[nodiscard]] std::unique_ptr<source> find_chunks(std::string_view name,
                                                  const pointer_facts& first,
                                                  std::uint64_t size_bytes);

/// The memfd from which a range of host memory is mapped. Throws not_exportable.
[[nodiscard]] std::unique_ptr<source> find_memfd(std::string_view name,
                                                 void* pointer,
                                                 std::uint64_t size_bytes);

/// Throws not_exportable.
[[noreturn]] void refuse(std::string_view name, std::string_view cause, std::string_view remedy);

}  // namespace gpushm::memory
