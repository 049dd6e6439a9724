// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "driver/devices.hpp"
#include "memory/backend.hpp"

namespace gpushm::memory {

/// cuMemCreate allocations that travel as POSIX descriptors. Uses the primary context of its GPU,
/// as the runtime API does, and leaves the thread's current context as it was.
class cuda_vmm_backend final : public backend {
 public:
  /// Throws driver_error when the GPU cannot share memory by descriptor.
  explicit cuda_vmm_backend(driver::gpu device);

  [[nodiscard]] gpushm::backend kind() const noexcept override { return gpushm::backend::cuda_vmm; }
  [[nodiscard]] const device_id& device() const noexcept override { return gpu_.id; }
  [[nodiscard]] std::uint64_t granularity() const override { return granularity_; }
  [[nodiscard]] std::unique_ptr<allocation> allocate(std::string_view name,
                                                     const chunk_plan& plan) const override;
  [[nodiscard]] std::unique_ptr<importer> begin_import(const import_request& wanted) const override;

 private:
  driver::gpu gpu_;
  std::uint64_t granularity_ = 0;
};

}  // namespace gpushm::memory
