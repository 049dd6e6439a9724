// SPDX-License-Identifier: Apache-2.0
#include "gpu/memory/backends/cuda_vmm_backend.hpp"

#include <fcntl.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/text/size_text.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/owners.hpp"
#include "gpu/driver/primary_context.hpp"
#include "gpu/driver/shareable_memory.hpp"
#include "gpu/memory/backends/device_bytes.hpp"
#include "gpushm/error.hpp"

namespace gpushm::memory {

namespace {

using driver::cuda_driver;

/// An address range of one GPU; set-access is called once for all chunks.
class device_mapping final : public address_range {
 public:
  device_mapping(std::string_view operation,
                 std::string_view name,
                 const driver::gpu& gpu,
                 std::uint64_t total_bytes,
                 gpushm::access access)
      : operation_(operation), name_(name), device_(gpu.handle), access_(access) {
    const driver::context_scope scope(
        driver::primary_context(gpu.handle, operation, name), operation_, name_);
    cuda::CUdeviceptr address = 0;
    check(cu_->cuMemAddressReserve(&address, total_bytes, 0, 0, 0), "cuMemAddressReserve");
    reservation_ = driver::unique_reservation({address, total_bytes});
  }

  /// Maps `handle`; the mapping keeps its memory, the caller keeps the handle.
  void append(cuda::CUmemGenericAllocationHandle handle, std::uint64_t chunk_bytes) {
    const cuda::CUdeviceptr at = reservation_.get().pointer + mapped_bytes_;
    check(cu_->cuMemMap(at, chunk_bytes, 0, handle, 0), "cuMemMap");
    mappings_.push_back(driver::unique_device_mapping({at, chunk_bytes}));
    mapped_bytes_ += chunk_bytes;
  }

  void add(base::guarded_fd chunk, std::uint64_t chunk_bytes) override {
    cuda::CUmemGenericAllocationHandle handle = 0;
    // The driver takes the descriptor's number in place of a pointer.
    auto* const number = reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): see above
        static_cast<std::intptr_t>(chunk.get()));
    check(cu_->cuMemImportFromShareableHandle(
              &handle, number, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          "cuMemImportFromShareableHandle");
    const driver::unique_allocation imported(handle);
    append(imported.get(), chunk_bytes);
  }

  void allow_access() override {
    cuda::CUmemAccessDesc description{};
    description.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, device_};
    description.flags = access_ == access::read ? cuda::CU_MEM_ACCESS_FLAGS_PROT_READ
                                                : cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    check(cu_->cuMemSetAccess(reservation_.get().pointer, mapped_bytes_, &description, 1),
          "cuMemSetAccess");
  }

  void unmap() override {
    while (!mappings_.empty()) {
      const driver::device_range last = mappings_.back().get();
      check(cu_->cuMemUnmap(last.pointer, last.size_bytes), "cuMemUnmap");
      static_cast<void>(mappings_.back().release());
      mappings_.pop_back();
      mapped_bytes_ -= last.size_bytes;
    }
  }

  [[nodiscard]] const std::string& name() const noexcept override { return name_; }
  [[nodiscard]] std::uint64_t total_bytes() const noexcept override {
    return reservation_.get().size_bytes;
  }
  /// The mapped memory from `offset_bytes` on.
  [[nodiscard]] device_bytes bytes_from(std::uint64_t offset_bytes) const {
    return {name_, device_, reservation_.get().pointer + offset_bytes};
  }
  [[nodiscard]] std::uint64_t mapped_bytes() const noexcept override { return mapped_bytes_; }

 private:
  void check(cuda::CUresult result, std::string_view call) const {
    cuda_driver::check(result, operation_, name_, call);
  }

  const cuda_driver& cu_ = cuda_driver::instance();
  std::string operation_;
  std::string name_;
  cuda::CUdevice device_;
  gpushm::access access_;
  std::uint64_t mapped_bytes_ = 0;
  driver::unique_reservation reservation_;
  std::vector<driver::unique_device_mapping> mappings_;  // unmapped before the range is freed
};

using owned_mapping = std::unique_ptr<device_mapping>;

class device_allocation final : public device_region<allocation, owned_mapping> {
 public:
  /// `bytes` belong to `mapping`.
  device_allocation(device_bytes bytes,
                    std::uint64_t mapped_bytes,
                    owned_mapping mapping,
                    std::vector<driver::unique_allocation> chunks)
      : device_region(std::move(mapping), std::move(bytes), mapped_bytes),
        chunks_(std::move(chunks)) {}

  [[nodiscard]] base::guarded_fd export_chunk(std::uint32_t index) override {
    return export_descriptor(chunks_.at(index).get(), "create", owner()->name());
  }
  void finish_exports() noexcept override { chunks_.clear(); }

 private:
  std::vector<driver::unique_allocation> chunks_;
};

class device_importer final : public importer {
 public:
  device_importer(const import_request& request, const driver::gpu& gpu)
      : offset_bytes_(request.offset_bytes),
        mapping_(std::make_unique<device_mapping>(
            "open", request.name, gpu, request.total_bytes, request.access)) {}

  void add(base::guarded_fd chunk, std::uint64_t chunk_bytes) override {
    mapping_->add(std::move(chunk), chunk_bytes);
  }

  [[nodiscard]] std::unique_ptr<region> finish() override {
    mapping_->allow_access();
    device_bytes bytes = mapping_->bytes_from(offset_bytes_);
    const std::uint64_t mapped_bytes = mapping_->mapped_bytes() - offset_bytes_;
    return std::make_unique<device_region<region, owned_mapping>>(
        std::move(mapping_), std::move(bytes), mapped_bytes);
  }

 private:
  std::uint64_t offset_bytes_;
  owned_mapping mapping_;
};

}  // namespace

base::guarded_fd own_descriptor(int fd) {
  base::guarded_fd owned{base::unique_fd(fd)};
  ::fcntl(owned.get(), F_SETFD, FD_CLOEXEC);
  return owned;
}

base::guarded_fd export_descriptor(cuda::CUmemGenericAllocationHandle chunk,
                                   std::string_view operation,
                                   std::string_view name) {
  int fd = -1;
  cuda_driver::check(cuda_driver::instance()->cuMemExportToShareableHandle(
                         &fd, chunk, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                     operation,
                     name,
                     "cuMemExportToShareableHandle");
  return own_descriptor(fd);
}

cuda_vmm_backend::cuda_vmm_backend(driver::gpu device) : gpu_(std::move(device)) {
  const cuda_driver& cu = cuda_driver::instance();
  int supported = 0;
  cuda_driver::check(cu->cuDeviceGetAttribute(
                         &supported,
                         cuda::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                         gpu_.handle),
                     "create",
                     gpu_.id.uuid,
                     "cuDeviceGetAttribute");
  if (supported == 0) {
    throw error(errc::driver_error,
                "create",
                gpu_.id.uuid,
                "this GPU cannot share memory as file descriptors",
                "use another GPU, or a driver newer than 450");
  }
  properties_ = driver::shareable_properties(gpu_.handle);
  std::size_t granularity = 0;
  cuda_driver::check(driver::shareable_granularity(gpu_, properties_, &granularity),
                     "create",
                     gpu_.id.uuid,
                     "cuMemGetAllocationGranularity");
  granularity_ = granularity;
}

std::unique_ptr<allocation> cuda_vmm_backend::allocate(
    std::string_view name,
    const chunk_plan& plan,
    std::chrono::steady_clock::time_point /*deadline*/) const {
  const cuda_driver& cu = cuda_driver::instance();
  auto mapping = std::make_unique<device_mapping>(
      "create", name, gpu_, plan.total_bytes(), access::read_write);
  cuda::CUmemAllocationProp properties = properties_;
  std::vector<driver::unique_allocation> chunks;
  chunks.reserve(plan.count);
  for (std::uint32_t i = 0; i < plan.count; ++i) {
    driver::unique_allocation& chunk = chunks.emplace_back();
    const cuda::CUresult result =
        driver::create_shareable(gpu_, properties, plan.size_of(i), chunk);
    if (result == cuda::CUDA_ERROR_OUT_OF_MEMORY) {
      std::size_t free_bytes = 0;
      std::size_t total_bytes = 0;
      const driver::context_scope scope(
          driver::primary_context(gpu_.handle, "create", name), "create", name);
      cu->cuMemGetInfo_v2(&free_bytes, &total_bytes);
      throw error(errc::out_of_memory,
                  "create",
                  name,
                  base::size_text(plan.total_bytes()) + " do not fit on " + gpu_.id.uuid + ": " +
                      base::size_text(free_bytes) + " of " + base::size_text(total_bytes) +
                      " are free (cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY)",
                  "remove unused segments, use a smaller size, or use another GPU");
    }
    cuda_driver::check(result, "create", name, "cuMemCreate");
    mapping->append(chunk.get(), plan.size_of(i));
  }
  mapping->allow_access();
  device_bytes bytes = mapping->bytes_from(0);
  const std::uint64_t mapped_bytes = mapping->mapped_bytes();
  return std::make_unique<device_allocation>(
      std::move(bytes), mapped_bytes, std::move(mapping), std::move(chunks));
}

std::unique_ptr<importer> cuda_vmm_backend::begin_import(const import_request& request) const {
  return std::make_unique<device_importer>(request, gpu_);
}

}  // namespace gpushm::memory
