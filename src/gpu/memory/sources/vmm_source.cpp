// SPDX-License-Identifier: Apache-2.0
// Virtual memory (cuMemMap): the physical chunks of an address range.
#include <string>
#include <utility>

#include "gpu/driver/cuda.hpp"
#include "gpu/driver/owners.hpp"
#include "gpu/memory/backends/cuda_vmm_backend.hpp"
#include "gpu/memory/sources/source_kinds.hpp"
#include "gpushm/error.hpp"

namespace gpushm::memory {

namespace {

using driver::cuda_driver;

struct chunk {
  cuda::CUdeviceptr start = 0;
  std::uint64_t size_bytes = 0;
};

/// The chunk that contains `address`; size 0 if nothing is mapped there.
chunk chunk_at(cuda::CUdeviceptr address) {
  const cuda_driver& cu = cuda_driver::instance();
  cuda::CUdeviceptr start = 0;
  std::size_t size = 0;
  if (cu->cuPointerGetAttribute(&start, cuda::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, address) !=
          cuda::CUDA_SUCCESS ||
      cu->cuPointerGetAttribute(&size, cuda::CU_POINTER_ATTRIBUTE_MAPPING_SIZE, address) !=
          cuda::CUDA_SUCCESS) {
    return {};
  }
  return {start, size};
}

/// A retained handle keeps the chunk allocated; only exporting needs it, so chunks are retained one
/// at a time.
driver::unique_allocation retain(std::string_view name, cuda::CUdeviceptr address) {
  cuda::CUmemGenericAllocationHandle handle = 0;
  auto* const pointer = reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): CUDA's way
      static_cast<std::uintptr_t>(address));
  cuda_driver::check(cuda_driver::instance()->cuMemRetainAllocationHandle(&handle, pointer),
                     "share",
                     name,
                     "cuMemRetainAllocationHandle");
  return driver::unique_allocation(handle);
}

class vmm_source final : public source {
 public:
  vmm_source(std::string_view name,
             const pointer_facts& first,
             std::uint64_t size_bytes,
             std::uint64_t offset_bytes)
      : source(first.address, size_bytes),
        name_(name),
        device_(first.device),
        offset_bytes_(offset_bytes) {}

  void append(const chunk& next) {
    starts_.push_back(next.start);
    chunk_bytes_.push_back(next.size_bytes);
    allocated_bytes_ += next.size_bytes;
  }

  [[nodiscard]] gpushm::backend kind() const noexcept override { return gpushm::backend::cuda_vmm; }
  [[nodiscard]] const device_id& device() const noexcept override { return device_; }
  [[nodiscard]] std::uint64_t offset_bytes() const noexcept override { return offset_bytes_; }
  [[nodiscard]] const std::vector<std::uint64_t>& chunk_bytes() const noexcept override {
    return chunk_bytes_;
  }
  [[nodiscard]] std::uint64_t allocated_bytes() const noexcept override { return allocated_bytes_; }
  [[nodiscard]] base::guarded_fd export_chunk(std::uint32_t index) override {
    const driver::unique_allocation held = retain(name_, starts_.at(index));
    return export_descriptor(held.get(), "share", name_);
  }

 private:
  std::string name_;
  device_id device_;
  std::uint64_t offset_bytes_;
  std::uint64_t allocated_bytes_ = 0;
  std::vector<cuda::CUdeviceptr> starts_;
  std::vector<std::uint64_t> chunk_bytes_;
};

}  // namespace

std::unique_ptr<source> find_chunks(std::string_view name,
                                    const pointer_facts& first,
                                    std::uint64_t size_bytes) {
  if (!first.exports_descriptors) {
    refuse(
        name,
        "its physical memory was allocated without a descriptor handle type, or was imported from "
        "another process",
        "allocate it with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; in PyTorch set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; share imported memory from the process "
        "that allocated it");
  }
  chunk next = chunk_at(first.address);
  auto source = std::make_unique<vmm_source>(name, first, size_bytes, first.address - next.start);
  const cuda::CUdeviceptr end = first.address + size_bytes;
  for (;;) {
    if (next.size_bytes == 0 || next.start + next.size_bytes <= next.start) {
      refuse(name,
             "nothing is mapped at " + std::to_string(end - next.start) +
                 " bytes before the end of the range",
             "share only mapped memory");
    }
    source->append(next);
    const cuda::CUdeviceptr next_start = next.start + next.size_bytes;
    if (next_start >= end) {
      return source;
    }
    next = chunk_at(next_start);
    if (next.size_bytes == 0) {
      next.start = next_start;
    }
  }
}

}  // namespace gpushm::memory
