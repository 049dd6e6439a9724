// SPDX-License-Identifier: Apache-2.0
#include "gpu/driver/shareable_memory.hpp"

#include <atomic>
#include <string>
#include <string_view>

#include "base/report/log.hpp"
#include "gpu/driver/cuda.hpp"

namespace gpushm::driver {

namespace {

/// Logs once per process: the line would be the same for every chunk.
void log_without_rdma(const gpu& gpu, const std::string& why) {
  static std::atomic<bool> logged{false};
  if (!logged.exchange(true, std::memory_order_relaxed)) {
    base::log(log_level::warning,
              gpu.id.uuid + ": memory is allocated without GPUDirect RDMA although the GPU " +
                  "supports it: " + why);
  }
}

/// Calls `call(properties)`, and again without gpuDirectRDMACapable if it fails with it.
template <typename Call>
cuda::CUresult with_or_without_rdma(const gpu& gpu,
                                    cuda::CUmemAllocationProp& properties,
                                    std::string_view name,
                                    Call&& call) {
  const cuda::CUresult first = call(properties);
  if (first == cuda::CUDA_SUCCESS || properties.allocFlags.gpuDirectRDMACapable == 0) {
    return first;
  }
  properties.allocFlags.gpuDirectRDMACapable = 0;
  const cuda::CUresult second = call(properties);
  if (second == cuda::CUDA_SUCCESS) {
    log_without_rdma(gpu, std::string(name) + ": " + result_text(first));
  }
  return second;
}

}  // namespace

cuda::CUmemAllocationProp shareable_properties(cuda::CUdevice device) {
  const cuda_driver& cu = cuda_driver::instance();
  cuda::CUmemAllocationProp properties{};
  properties.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, device};
  int rdma = 0;
  // A driver that does not support the attribute does not support the flag.
  if (cu->cuDeviceGetAttribute(&rdma,
                               cuda::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                               device) == cuda::CUDA_SUCCESS &&
      rdma != 0) {
    properties.allocFlags.gpuDirectRDMACapable = 1;
  }
  return properties;
}

cuda::CUresult shareable_granularity(const gpu& gpu,
                                     cuda::CUmemAllocationProp& properties,
                                     std::size_t* granularity_bytes) {
  const cuda_driver& cu = cuda_driver::instance();
  return with_or_without_rdma(
      gpu,
      properties,
      "cuMemGetAllocationGranularity",
      [&](const cuda::CUmemAllocationProp& expected) {
        return cu->cuMemGetAllocationGranularity(
            granularity_bytes, &expected, cuda::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
      });
}

cuda::CUresult create_shareable(const gpu& gpu,
                                cuda::CUmemAllocationProp& properties,
                                std::size_t size_bytes,
                                unique_allocation& memory) {
  const cuda_driver& cu = cuda_driver::instance();
  const cuda::CUresult result = with_or_without_rdma(
      gpu, properties, "cuMemCreate", [&](const cuda::CUmemAllocationProp& expected) {
        cuda::CUmemGenericAllocationHandle handle = 0;
        const cuda::CUresult status = cu->cuMemCreate(&handle, size_bytes, &expected, 0);
        if (status == cuda::CUDA_SUCCESS) {
          memory = unique_allocation(handle);
        }
        return status;
      });
  cuda::CUmemAllocationProp actual{};
  if (result == cuda::CUDA_SUCCESS && properties.allocFlags.gpuDirectRDMACapable != 0 &&
      cu->cuMemGetAllocationPropertiesFromHandle(&actual, memory.get()) == cuda::CUDA_SUCCESS &&
      actual.allocFlags.gpuDirectRDMACapable == 0) {
    log_without_rdma(gpu, "cuMemCreate ignored gpuDirectRDMACapable");
  }
  return result;
}

}  // namespace gpushm::driver
