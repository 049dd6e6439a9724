// SPDX-License-Identifier: Apache-2.0
#include "gpu/memory/sources/source.hpp"

#include <array>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "base/process/process.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/owners.hpp"
#include "gpu/driver/primary_context.hpp"
#include "gpu/memory/backends/cuda_vmm_backend.hpp"
#include "gpu/memory/sources/source_kinds.hpp"
#include "gpushm/error.hpp"

namespace gpushm::memory {

namespace {

using driver::cuda_driver;

std::uint64_t buffer_id_of(cuda::CUdeviceptr address) noexcept {
  unsigned long long id = 0;
  const cuda_driver* cu = cuda_driver::try_instance();
  if (cu == nullptr ||
      (*cu)->cuPointerGetAttribute(&id, cuda::CU_POINTER_ATTRIBUTE_BUFFER_ID, address) !=
          cuda::CUDA_SUCCESS) {
    return 0;
  }
  return id;
}

/// Exporter-bound memory of this process: one allocation, distinguished from later ones by its
/// buffer id.
class exporter_bound_source : public source {
 public:
  exporter_bound_source(const pointer_facts& facts, std::uint64_t size_bytes, gpushm::backend kind)
      : source(facts.address, size_bytes),
        remote_{kind,
                size_bytes,
                facts.address - facts.range_start,
                facts.range_bytes,
                facts.device,
                base::this_process(),
                facts.address,
                facts.buffer_id,
                {},
                {},
                0} {}

  [[nodiscard]] gpushm::backend kind() const noexcept override { return remote_.kind; }
  [[nodiscard]] const device_id& device() const noexcept override { return remote_.device; }
  [[nodiscard]] std::uint64_t offset_bytes() const noexcept override {
    return remote_.offset_bytes;
  }
  [[nodiscard]] std::uint64_t allocated_bytes() const noexcept override {
    return remote_.allocated_bytes;
  }
  [[nodiscard]] std::optional<remote_memory> remote() const override { return remote_; }
  [[nodiscard]] bool unchanged() const noexcept override {
    return buffer_id_of(remote_.address) == remote_.buffer_id;
  }

 protected:
  remote_memory remote_;
  std::optional<own_export> shared_;
};

class legacy_source final : public exporter_bound_source {
 public:
  legacy_source(std::string_view name, const pointer_facts& facts, std::uint64_t size_bytes)
      : exporter_bound_source(facts, size_bytes, gpushm::backend::cuda_ipc) {
    const cuda::CUcontext context =
        facts.context != nullptr ? facts.context
                                 : driver::primary_context(facts.device_handle, "share", name);
    const driver::context_scope scope(context, "share", name);
    cuda::CUipcMemHandle handle{};
    cuda_driver::check(cuda_driver::instance()->cuIpcGetMemHandle(&handle, facts.range_start),
                       "share",
                       name,
                       "cuIpcGetMemHandle");
    std::memcpy(remote_.handle.data(), &handle, sizeof handle);
    // Verified on this handle: the driver must have stored this process's PID there.
    if (pid_in(remote_.handle, cuda::ipc_handle_pid_offset) == remote_.exporter.pid) {
      remote_.pid_offset = static_cast<std::uint16_t>(cuda::ipc_handle_pid_offset);
    }
    shared_.emplace(remote_);
  }

  [[nodiscard]] const std::vector<std::uint64_t>& chunk_bytes() const noexcept override {
    return none_;
  }
  [[nodiscard]] base::guarded_fd export_chunk(std::uint32_t /*index*/) override { return {}; }

 private:
  std::vector<std::uint64_t> none_;
};

class pool_source final : public exporter_bound_source {
 public:
  pool_source(std::string_view name, const pointer_facts& facts, std::uint64_t size_bytes)
      : exporter_bound_source(facts, size_bytes, gpushm::backend::cuda_pool),
        name_(name),
        pool_(facts.pool),
        chunk_bytes_{facts.range_bytes} {
    remote_.pool = reinterpret_cast<std::uintptr_t>(pool_);
    descriptor_ = export_pool();  // the driver exports pointers only of exported pools
    cuda::CUmemPoolPtrExportData data{};
    cuda_driver::check(cuda_driver::instance()->cuMemPoolExportPointer(&data, facts.range_start),
                       "share",
                       name,
                       "cuMemPoolExportPointer");
    std::memcpy(remote_.handle.data(), &data, sizeof data);
    shared_.emplace(remote_);
  }

  [[nodiscard]] const std::vector<std::uint64_t>& chunk_bytes() const noexcept override {
    return chunk_bytes_;
  }
  [[nodiscard]] base::guarded_fd export_chunk(std::uint32_t /*index*/) override {
    return descriptor_ ? std::move(descriptor_) : export_pool();
  }

 private:
  [[nodiscard]] base::guarded_fd export_pool() const {
    int fd = -1;
    cuda_driver::check(cuda_driver::instance()->cuMemPoolExportToShareableHandle(
                           &fd, pool_, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                       "share",
                       name_,
                       "cuMemPoolExportToShareableHandle");
    return own_descriptor(fd);
  }

  std::string name_;
  cuda::CUmemoryPool pool_;
  std::vector<std::uint64_t> chunk_bytes_;
  base::guarded_fd descriptor_;
};

/// Returns nullopt if CUDA does not know the address.
std::optional<pointer_facts> query_pointer(cuda::CUdeviceptr address) {
  const cuda_driver* cu = cuda_driver::try_instance();
  if (cu == nullptr) {
    return std::nullopt;
  }
  pointer_facts facts;
  facts.address = address;
  const auto query = [&](cuda::CUpointer_attribute attribute, auto& value) {
    return (*cu)->cuPointerGetAttribute(&value, attribute, address) == cuda::CUDA_SUCCESS;
  };
  unsigned int type = 0;
  if (!query(cuda::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, type)) {
    return std::nullopt;
  }
  facts.on_host = type == cuda::CU_MEMORYTYPE_HOST;
  unsigned int managed = 0;
  facts.managed = query(cuda::CU_POINTER_ATTRIBUTE_IS_MANAGED, managed) && managed != 0;
  int ordinal = -1;
  cuda::CUdeviceptr start = address;
  std::size_t size = 0;
  unsigned long long buffer_id = 0;
  unsigned long long handle_types = 0;
  query(cuda::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ordinal);
  query(cuda::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, start);
  query(cuda::CU_POINTER_ATTRIBUTE_RANGE_SIZE, size);
  query(cuda::CU_POINTER_ATTRIBUTE_BUFFER_ID, buffer_id);
  query(cuda::CU_POINTER_ATTRIBUTE_CONTEXT, facts.context);
  query(cuda::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, facts.pool);
  query(cuda::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, handle_types);
  query(cuda::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, facts.legacy_capable);
  facts.range_start = start;
  facts.range_bytes = size;
  facts.buffer_id = buffer_id;
  facts.exports_descriptors = (handle_types & cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
  for (const driver::gpu& each : driver::visible_gpus()) {
    if (each.ordinal == ordinal) {
      facts.device = each.id;
      facts.device_handle = each.handle;
    }
  }
  return facts;
}

constexpr std::string_view exportable_remedy =
    "allocate it with cudaMalloc, or with cuMemCreate and a descriptor handle type; in PyTorch set "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";

/// Checks that the range ends within the allocation that it begins in.
void check_range(std::string_view name, const pointer_facts& facts, std::uint64_t size_bytes) {
  const std::uint64_t bytes_left = facts.range_start + facts.range_bytes - facts.address;
  if (size_bytes > bytes_left) {
    refuse(name,
           std::to_string(size_bytes) + " bytes exceed the allocation, which ends " +
               std::to_string(bytes_left) + " bytes after the pointer",
           "share at most one allocation at a time");
  }
}

bool is_virtual_memory(cuda::CUdeviceptr address) {
  cuda::CUmemGenericAllocationHandle handle = 0;
  auto* const pointer = reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): CUDA's way
      static_cast<std::uintptr_t>(address));
  if (cuda_driver::instance()->cuMemRetainAllocationHandle(&handle, pointer) !=
      cuda::CUDA_SUCCESS) {
    return false;
  }
  const driver::unique_allocation retained(handle);
  return true;
}

}  // namespace

void refuse(std::string_view name, std::string_view cause, std::string_view remedy) {
  throw error(errc::not_exportable, "share", name, cause, remedy);
}

std::unique_ptr<source> find_source(std::string_view name,
                                    void* pointer,
                                    std::uint64_t size_bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (pointer == nullptr || size_bytes == 0 ||
      size_bytes > std::numeric_limits<std::uintptr_t>::max() - address) {
    throw error(errc::invalid_argument,
                "share",
                name,
                pointer == nullptr ? "the pointer is null"
                : size_bytes == 0  ? "the size is 0 bytes"
                                   : "the range does not fit into the address space",
                "pass the address and the size of existing memory");
  }
  const auto facts = query_pointer(address);
  if (facts && facts->managed) {
    refuse(name,
           "it is managed memory (cudaMallocManaged), which the driver cannot export",
           exportable_remedy);
  }
  if (!facts || facts->on_host) {
    return find_memfd(name, pointer, size_bytes);
  }
  if (facts->pool != nullptr) {
    if (!facts->exports_descriptors) {
      refuse(name,
             "it is memory of a pool that cannot be exported: cudaMallocAsync's default pool, a "
             "pool without descriptor handles, or one imported from another process",
             "allocate it with cudaMalloc, or from a pool created with "
             "cudaMemHandleTypePosixFileDescriptor; in PyTorch set "
             "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True instead of "
             "backend:cudaMallocAsync");
    }
    check_range(name, *facts, size_bytes);
    return std::make_unique<pool_source>(name, *facts, size_bytes);
  }
  if (facts->legacy_capable) {
    check_range(name, *facts, size_bytes);
    return std::make_unique<legacy_source>(name, *facts, size_bytes);
  }
  if (is_virtual_memory(address)) {
    return find_chunks(name, *facts, size_bytes);
  }
  refuse(name,
         "it is device memory of a kind that the driver does not export: mapped from another "
         "process, or an array",
         exportable_remedy);
}

}  // namespace gpushm::memory
