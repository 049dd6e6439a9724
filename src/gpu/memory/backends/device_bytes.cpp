// SPDX-License-Identifier: Apache-2.0
#include "gpu/memory/backends/device_bytes.hpp"

#include "gpu/driver/cuda.hpp"
#include "gpu/memory/backends/private_stream.hpp"
#include "gpushm/error.hpp"

namespace gpushm::memory {

using driver::cuda_driver;

void device_bytes::read(std::uint64_t offset_bytes, std::span<std::byte> destination) const {
  if (destination.empty()) {
    return;  // an address at the memory's end is not valid
  }
  const private_stream on(device_, "read", name_);
  cuda_driver::check(cuda_driver::instance()->cuMemcpyDtoHAsync_v2(
                         destination.data(), first_ + offset_bytes, destination.size(), on.get()),
                     "read",
                     name_,
                     "cuMemcpyDtoHAsync");
  on.synchronize();
}

void device_bytes::write(std::uint64_t offset_bytes, std::span<const std::byte> source) const {
  if (source.empty()) {
    return;
  }
  const private_stream on(device_, "write", name_);
  cuda_driver::check(cuda_driver::instance()->cuMemcpyHtoDAsync_v2(
                         first_ + offset_bytes, source.data(), source.size(), on.get()),
                     "write",
                     name_,
                     "cuMemcpyHtoDAsync");
  on.synchronize();
}

void device_bytes::fill(std::uint64_t offset_bytes,
                        std::uint64_t size_bytes,
                        std::byte value) const {
  if (size_bytes == 0) {
    return;
  }
  const private_stream on(device_, "fill", name_);
  cuda_driver::check(
      cuda_driver::instance()->cuMemsetD8Async(
          first_ + offset_bytes, std::to_integer<unsigned char>(value), size_bytes, on.get()),
      "fill",
      name_,
      "cuMemsetD8Async");
  on.synchronize();
}

gpu_source find_gpu_source(const void* first, const std::string& name) {
  const cuda_driver& cu = cuda_driver::instance();
  const auto address = static_cast<cuda::CUdeviceptr>(reinterpret_cast<std::uintptr_t>(first));
  gpu_source result{first};
  unsigned int type = 0;
  if (cu->cuPointerGetAttribute(&type, cuda::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) !=
          cuda::CUDA_SUCCESS ||
      type != cuda::CU_MEMORYTYPE_DEVICE ||
      cu->cuPointerGetAttribute(&result.ordinal,
                                cuda::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                address) != cuda::CUDA_SUCCESS) {
    throw error(errc::invalid_argument,
                "write",
                name,
                "the source is not memory of a GPU",
                "pass an address of the GPU's memory, or copy host memory with write()");
  }
  cuda_driver::check(cu->cuDeviceGet(&result.device, result.ordinal), "write", name, "cuDeviceGet");
  return result;
}

void copy_to_host(const gpu_source& source,
                  std::uint64_t offset_bytes,
                  std::span<std::byte> target,
                  const std::string& name) {
  const auto first = static_cast<cuda::CUdeviceptr>(reinterpret_cast<std::uintptr_t>(source.first));
  device_bytes(name, source.device, first).read(offset_bytes, target);
}

void copy_on_gpu(const gpu_source& source,
                 void* target,
                 std::uint64_t size_bytes,
                 const std::string& name) {
  const private_stream on(source.device, "write", name);
  const auto first = static_cast<cuda::CUdeviceptr>(reinterpret_cast<std::uintptr_t>(source.first));
  const auto into = static_cast<cuda::CUdeviceptr>(reinterpret_cast<std::uintptr_t>(target));
  cuda_driver::check(
      cuda_driver::instance()->cuMemcpyDtoDAsync_v2(into, first, size_bytes, on.get()),
      "write",
      name,
      "cuMemcpyDtoDAsync");
  on.synchronize();
}

}  // namespace gpushm::memory
