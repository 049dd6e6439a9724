// SPDX-License-Identifier: Apache-2.0
#include "memory/device_bytes.hpp"

#include "driver/cuda.hpp"
#include "driver/owners.hpp"
#include "driver/primary_context.hpp"
#include "gpushm/error.hpp"

namespace gpushm::memory {

namespace {

using driver::cuda_driver;

/// Copies from pageable memory and memsets may return before the device has finished.
void finish_work(const cuda_driver& cu, std::string_view operation, std::string_view name) {
  cuda_driver::check(cu->cuStreamSynchronize(nullptr), operation, name, "cuStreamSynchronize");
}

}  // namespace

void device_bytes::read(std::uint64_t offset_bytes, std::span<std::byte> destination) const {
  if (destination.empty()) {
    return;  // an address at the memory's end is not valid
  }
  const cuda_driver& cu = cuda_driver::instance();
  const driver::context_scope scope(driver::primary_context(device_, "read", name_), "read", name_);
  cuda_driver::check(
      cu->cuMemcpyDtoH_v2(destination.data(), first_ + offset_bytes, destination.size()),
      "read",
      name_,
      "cuMemcpyDtoH");
}

void device_bytes::write(std::uint64_t offset_bytes, std::span<const std::byte> source) const {
  if (source.empty()) {
    return;
  }
  const cuda_driver& cu = cuda_driver::instance();
  const driver::context_scope scope(
      driver::primary_context(device_, "write", name_), "write", name_);
  cuda_driver::check(cu->cuMemcpyHtoD_v2(first_ + offset_bytes, source.data(), source.size()),
                     "write",
                     name_,
                     "cuMemcpyHtoD");
  finish_work(cu, "write", name_);
}

void device_bytes::fill(std::uint64_t offset_bytes,
                        std::uint64_t size_bytes,
                        std::byte value) const {
  if (size_bytes == 0) {
    return;
  }
  const cuda_driver& cu = cuda_driver::instance();
  const driver::context_scope scope(driver::primary_context(device_, "fill", name_), "fill", name_);
  cuda_driver::check(
      cu->cuMemsetD8_v2(first_ + offset_bytes, std::to_integer<unsigned char>(value), size_bytes),
      "fill",
      name_,
      "cuMemsetD8");
  finish_work(cu, "fill", name_);
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

void copy_to_host(const gpu_source& from,
                  std::uint64_t offset_bytes,
                  std::span<std::byte> target,
                  const std::string& name) {
  const auto first = static_cast<cuda::CUdeviceptr>(reinterpret_cast<std::uintptr_t>(from.first));
  device_bytes(name, from.device, first).read(offset_bytes, target);
}

void copy_on_gpu(const gpu_source& from,
                 void* target,
                 std::uint64_t size_bytes,
                 const std::string& name) {
  const cuda_driver& cu = cuda_driver::instance();
  const driver::context_scope scope(
      driver::primary_context(from.device, "write", name), "write", name);
  const auto first = static_cast<cuda::CUdeviceptr>(reinterpret_cast<std::uintptr_t>(from.first));
  const auto into = static_cast<cuda::CUdeviceptr>(reinterpret_cast<std::uintptr_t>(target));
  cuda_driver::check(cu->cuMemcpyDtoD_v2(into, first, size_bytes), "write", name, "cuMemcpyDtoD");
  finish_work(cu, "write", name);
}

}  // namespace gpushm::memory
