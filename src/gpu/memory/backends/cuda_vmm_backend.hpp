// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/driver/devices.hpp"
#include "gpu/memory/backends/backend.hpp"

namespace gpushm::memory {

/// Takes ownership of a descriptor created by the driver and sets close-on-exec.
[[nodiscard]] base::guarded_fd own_descriptor(int fd);

/// A descriptor of a chunk, owned by the caller. Throws driver_error, naming `operation`.
[[nodiscard]] base::guarded_fd export_descriptor(cuda::CUmemGenericAllocationHandle chunk,
                                                 std::string_view operation,
                                                 std::string_view name);

/// cuMemCreate allocations shared as POSIX descriptors, allocated for GPUDirect RDMA if the GPU
/// supports that. Uses the primary context of its GPU, as the runtime API does, and restores the
/// thread's current context.
class cuda_vmm_backend final : public backend {
 public:
  /// Throws driver_error if the GPU cannot share memory by descriptor.
  explicit cuda_vmm_backend(driver::gpu device);

  [[nodiscard]] gpushm::backend kind() const noexcept override { return gpushm::backend::cuda_vmm; }
  [[nodiscard]] const device_id& device() const noexcept override { return gpu_.id; }
  [[nodiscard]] std::uint64_t granularity() const override { return granularity_; }
  [[nodiscard]] std::unique_ptr<allocation> allocate(
      std::string_view name,
      const chunk_plan& plan,
      std::chrono::steady_clock::time_point deadline) const override;

 private:
  [[nodiscard]] std::unique_ptr<importer> begin_import(
      const import_request& request) const override;

  driver::gpu gpu_;
  cuda::CUmemAllocationProp properties_{};
  std::uint64_t granularity_ = 0;
};

}  // namespace gpushm::memory
