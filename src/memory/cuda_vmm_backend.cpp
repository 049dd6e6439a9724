// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda_vmm_backend.hpp"

#include <fcntl.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/size_text.hpp"
#include "driver/cuda.hpp"
#include "driver/owners.hpp"
#include "gpushm/error.hpp"

namespace gpushm::memory {

namespace {

using driver::cuda_driver;

/// The primary context of a GPU, retained once and for the life of the process: making one costs
/// 150 ms, and letting it go while static destructors run is not safe.
cuda::CUcontext primary_context(cuda::CUdevice device,
                                std::string_view operation,
                                std::string_view name) {
  static std::mutex mutex;
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): never destroyed, see above
  static auto* const contexts = new std::map<cuda::CUdevice, driver::unique_primary_context>;
  const std::lock_guard lock(mutex);
  auto at = contexts->find(device);
  if (at == contexts->end()) {
    at = contexts->emplace(device, driver::retain_primary_context(device, operation, name)).first;
  }
  return at->second.get().context;
}

cuda::CUmemAllocationProp properties(cuda::CUdevice device) {
  cuda::CUmemAllocationProp prop{};
  prop.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, device};
  return prop;
}

/// An address range of one GPU's, into which chunks are mapped one behind the other; one set-access
/// for all.
class device_mapping {
 public:
  device_mapping(std::string_view operation,
                 std::string_view name,
                 const driver::gpu& gpu,
                 std::uint64_t total_bytes)
      : operation_(operation),
        name_(name),
        device_(gpu.handle),
        context_(primary_context(gpu.handle, operation, name)),
        total_bytes_(total_bytes) {
    const driver::context_scope scope(context_, operation_, name_);
    cuda::CUdeviceptr address = 0;
    check(cu_->cuMemAddressReserve(&address, total_bytes, 0, 0, 0), "cuMemAddressReserve");
    reservation_ = driver::unique_reservation({address, total_bytes});
  }

  /// Maps `handle`; the mapping keeps its memory, the handle stays the caller's.
  void append(cuda::CUmemGenericAllocationHandle handle, std::uint64_t chunk_bytes) {
    const cuda::CUdeviceptr at = reservation_.get().pointer + mapped_bytes_;
    check(cu_->cuMemMap(at, chunk_bytes, 0, handle, 0), "cuMemMap");
    mappings_.push_back(driver::unique_device_mapping({at, chunk_bytes}));
    mapped_bytes_ += chunk_bytes;
  }

  void allow(gpushm::access access) {
    cuda::CUmemAccessDesc description{};
    description.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, device_};
    description.flags = access == access::read ? cuda::CU_MEM_ACCESS_FLAGS_PROT_READ
                                               : cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    check(cu_->cuMemSetAccess(reservation_.get().pointer, mapped_bytes_, &description, 1),
          "cuMemSetAccess");
  }

  void read(std::uint64_t offset_bytes, std::span<std::byte> destination) const {
    const driver::context_scope scope(context_, "read", name_);
    cuda_driver::check(
        cu_->cuMemcpyDtoH_v2(destination.data(), address(offset_bytes), destination.size()),
        "read",
        name_,
        "cuMemcpyDtoH");
  }
  void write(std::uint64_t offset_bytes, std::span<const std::byte> source) {
    const driver::context_scope scope(context_, "write", name_);
    cuda_driver::check(cu_->cuMemcpyHtoD_v2(address(offset_bytes), source.data(), source.size()),
                       "write",
                       name_,
                       "cuMemcpyHtoD");
    finish_work("write");
  }
  void fill(std::uint64_t offset_bytes, std::uint64_t size_bytes, std::byte value) {
    const driver::context_scope scope(context_, "fill", name_);
    cuda_driver::check(
        cu_->cuMemsetD8_v2(
            address(offset_bytes), std::to_integer<unsigned char>(value), size_bytes),
        "fill",
        name_,
        "cuMemsetD8");
    finish_work("fill");
  }

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const cuda_driver& driver() const noexcept { return cu_; }
  [[nodiscard]] void* data() const noexcept {
    return reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): how CUDA spells pointers
        static_cast<std::uintptr_t>(reservation_.get().pointer));
  }
  [[nodiscard]] std::uint64_t mapped_bytes() const noexcept { return mapped_bytes_; }
  [[nodiscard]] std::uint64_t missing_bytes() const noexcept {
    return total_bytes_ - mapped_bytes_;
  }

 private:
  void check(cuda::CUresult result, std::string_view call) const {
    cuda_driver::check(result, operation_, name_, call);
  }
  [[nodiscard]] cuda::CUdeviceptr address(std::uint64_t offset_bytes) const noexcept {
    return reservation_.get().pointer + offset_bytes;
  }
  /// Copies from pageable memory and memsets may return before the device is done.
  void finish_work(std::string_view operation) {
    cuda_driver::check(cu_->cuStreamSynchronize(nullptr), operation, name_, "cuStreamSynchronize");
  }

  const cuda_driver& cu_ = cuda_driver::instance();
  std::string operation_;
  std::string name_;
  cuda::CUdevice device_;
  cuda::CUcontext context_;
  std::uint64_t total_bytes_;
  std::uint64_t mapped_bytes_ = 0;
  driver::unique_reservation reservation_;
  std::vector<driver::unique_device_mapping> mappings_;  // unmapped before the range is freed
};

/// What allocations and imports have in common.
template <typename Base>
class device_memory : public Base {
 public:
  explicit device_memory(std::unique_ptr<device_mapping> mapping) : mapping_(std::move(mapping)) {}

  [[nodiscard]] void* data() const noexcept override { return mapping_->data(); }
  [[nodiscard]] std::uint64_t mapped_bytes() const noexcept override {
    return mapping_->mapped_bytes();
  }
  void read(std::uint64_t offset_bytes, std::span<std::byte> destination) const override {
    mapping_->read(offset_bytes, destination);
  }
  void write(std::uint64_t offset_bytes, std::span<const std::byte> source) override {
    mapping_->write(offset_bytes, source);
  }
  void fill(std::uint64_t offset_bytes, std::uint64_t size_bytes, std::byte value) override {
    mapping_->fill(offset_bytes, size_bytes, value);
  }

 protected:
  [[nodiscard]] const device_mapping& mapping() const noexcept { return *mapping_; }

 private:
  std::unique_ptr<device_mapping> mapping_;
};

class device_allocation final : public device_memory<allocation> {
 public:
  device_allocation(std::unique_ptr<device_mapping> mapping,
                    std::vector<driver::unique_allocation> chunks)
      : device_memory(std::move(mapping)), chunks_(std::move(chunks)) {}

  [[nodiscard]] base::unique_fd export_chunk(std::uint32_t index) override {
    int fd = -1;
    cuda_driver::check(
        mapping().driver()->cuMemExportToShareableHandle(
            &fd, chunks_.at(index).get(), cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "create",
        mapping().name(),
        "cuMemExportToShareableHandle");
    base::unique_fd chunk(fd);
    ::fcntl(chunk.get(), F_SETFD, FD_CLOEXEC);
    return chunk;
  }
  void finish_exports() noexcept override { chunks_.clear(); }

 private:
  std::vector<driver::unique_allocation> chunks_;
};

class device_importer final : public importer {
 public:
  device_importer(std::string_view name,
                  const driver::gpu& gpu,
                  std::uint64_t total_bytes,
                  gpushm::access access)
      : access_(access),
        mapping_(std::make_unique<device_mapping>("open", name, gpu, total_bytes)) {}

  void add(base::unique_fd chunk, std::uint64_t chunk_bytes) override {
    if (chunk_bytes == 0 || chunk_bytes > mapping_->missing_bytes()) {
      throw error(errc::protocol_error,
                  "open",
                  mapping_->name(),
                  "the chunks are larger than the segment",
                  "report this as a bug");
    }
    cuda::CUmemGenericAllocationHandle handle = 0;
    // The driver takes the descriptor's number in place of a pointer.
    auto* const number = reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): see above
        static_cast<std::intptr_t>(chunk.get()));
    cuda_driver::check(mapping_->driver()->cuMemImportFromShareableHandle(
                           &handle, number, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                       "open",
                       mapping_->name(),
                       "cuMemImportFromShareableHandle");
    const driver::unique_allocation imported(handle);
    mapping_->append(imported.get(), chunk_bytes);
  }

  std::unique_ptr<region> finish() override {
    if (mapping_->missing_bytes() != 0) {
      throw error(errc::protocol_error,
                  "open",
                  mapping_->name(),
                  "the chunks are smaller than the segment",
                  "report this as a bug");
    }
    mapping_->allow(access_);
    return std::make_unique<device_memory<region>>(std::move(mapping_));
  }

 private:
  gpushm::access access_;
  std::unique_ptr<device_mapping> mapping_;
};

}  // namespace

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
  const cuda::CUmemAllocationProp prop = properties(gpu_.handle);
  std::size_t granularity = 0;
  cuda_driver::check(cu->cuMemGetAllocationGranularity(
                         &granularity, &prop, cuda::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                     "create",
                     gpu_.id.uuid,
                     "cuMemGetAllocationGranularity");
  granularity_ = granularity;
}

std::unique_ptr<allocation> cuda_vmm_backend::allocate(std::string_view name,
                                                       const chunk_plan& plan) const {
  const cuda_driver& cu = cuda_driver::instance();
  auto mapping = std::make_unique<device_mapping>("create", name, gpu_, plan.total_bytes());
  const cuda::CUmemAllocationProp prop = properties(gpu_.handle);
  std::vector<driver::unique_allocation> chunks;
  chunks.reserve(plan.count);
  for (std::uint32_t i = 0; i < plan.count; ++i) {
    cuda::CUmemGenericAllocationHandle handle = 0;
    const cuda::CUresult result = cu->cuMemCreate(&handle, plan.size_of(i), &prop, 0);
    if (result == cuda::CUDA_ERROR_OUT_OF_MEMORY) {
      std::size_t free_bytes = 0;
      std::size_t total_bytes = 0;
      const driver::context_scope scope(
          primary_context(gpu_.handle, "create", name), "create", name);
      cu->cuMemGetInfo_v2(&free_bytes, &total_bytes);
      throw error(errc::out_of_memory,
                  "create",
                  name,
                  base::size_text(plan.total_bytes()) + " do not fit on " + gpu_.id.uuid + ": " +
                      base::size_text(free_bytes) + " of " + base::size_text(total_bytes) +
                      " are free (cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY)",
                  "remove segments that nobody needs, use a smaller size, or another GPU");
    }
    cuda_driver::check(result, "create", name, "cuMemCreate");
    chunks.emplace_back(handle);
    mapping->append(handle, plan.size_of(i));
  }
  mapping->allow(access::read_write);
  return std::make_unique<device_allocation>(std::move(mapping), std::move(chunks));
}

std::unique_ptr<importer> cuda_vmm_backend::begin_import(std::string_view name,
                                                         std::uint64_t total_bytes,
                                                         gpushm::access access) const {
  return std::make_unique<device_importer>(name, gpu_, total_bytes, access);
}

}  // namespace gpushm::memory
