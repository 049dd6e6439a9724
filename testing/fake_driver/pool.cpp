// SPDX-License-Identifier: Apache-2.0
// Memory pools with descriptor handles: one file a pool, allocations at offsets in it.
#include "fake_driver/pool.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "fake_driver/gpu_file.hpp"
#include "fake_driver/state.hpp"
#include "fake_driver/streams.hpp"

using namespace gpushm;
using namespace gpushm::cuda;
using gpushm::fake::as_address;
using gpushm::fake::entry;
using gpushm::fake::range_kind;
using gpushm::fake::state;

namespace {

constexpr std::size_t allocation_step_bytes = 64UL << 10U;

struct pool {
  std::size_t gpu = 0;
  base::unique_fd fd;
  CUmemAllocationHandleType handle_types = CU_MEM_HANDLE_TYPE_NONE;
  bool imported = false;
  std::map<std::size_t, std::size_t> used;  // offset → bytes; of a pool made here
};

struct pool_memory {
  pool_memory() = default;
  pool_memory(const pool_memory&) = delete;
  pool_memory& operator=(const pool_memory&) = delete;
  ~pool_memory() {
    if (memory != nullptr) {
      ::munmap(memory, size_bytes);
    }
    if (!from->imported) {
      ::fallocate(from->fd.get(),
                  FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(fake::header_bytes + offset_bytes),
                  static_cast<off_t>(size_bytes));
      from->used.erase(offset_bytes);
      state().own_bytes[from->gpu] -= size_bytes;
    }
  }

  std::shared_ptr<pool> from;
  std::size_t offset_bytes = 0;
  std::size_t size_bytes = 0;
  void* memory = nullptr;
};

// What cuMemPoolExportPointer hands out.
struct pointer_layout {
  char magic[8];
  std::uint64_t offset_bytes;
  std::uint64_t size_bytes;
  std::uint64_t asked_bytes;
};
static_assert(sizeof(pointer_layout) <= sizeof(CUmemPoolPtrExportData));
constexpr char pointer_magic[8] = {'f', 'a', 'k', 'e', 'p', 't', 'r', '1'};

// Guarded by the state's mutex, and never destroyed, like the state.
std::map<CUmemoryPool, std::shared_ptr<pool>>& pools() {
  static auto* const made = new std::map<CUmemoryPool, std::shared_ptr<pool>>();
  return *made;
}

std::shared_ptr<pool> find_pool(CUmemoryPool handle) {
  const auto found = pools().find(handle);
  return found == pools().end() ? nullptr : found->second;
}

CUmemoryPool add_pool(std::shared_ptr<pool> made) {
  const auto handle = reinterpret_cast<CUmemoryPool>(made.get());
  pools().emplace(handle, std::move(made));
  return handle;
}

std::size_t first_gap(const pool& from, std::size_t size) {
  std::size_t at = 0;
  for (const auto& [offset, bytes] : from.used) {
    if (offset - at >= size) {
      break;
    }
    at = offset + bytes;
  }
  return at;
}

CUdeviceptr add_range(std::shared_ptr<pool_memory> memory, std::size_t asked_bytes) {
  fake::range added;
  added.base = as_address(memory->memory);
  added.size_bytes = asked_bytes;
  added.kind = range_kind::pool;
  added.gpu = memory->from->gpu;
  added.readable = true;
  added.writable = true;
  added.buffer_id = state().ranges.next_buffer_id();
  added.owner = std::move(memory);
  const CUdeviceptr base = added.base;
  state().ranges.add(std::move(added));
  return base;
}

// I4: what the real driver does when a pool of a GPU that is not allowed here is imported.
void crash() {
  void* const page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *static_cast<volatile char*>(page) = 1;
}

}  // namespace

CUresult fake::free_pool_memory(CUdeviceptr pointer) {
  const fake::range* const found = state().ranges.find(pointer);
  if (found == nullptr || found->kind != range_kind::pool || found->base != pointer) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  state().ranges.remove(pointer);
  return CUDA_SUCCESS;
}

CUresult cuda::cuMemPoolCreate(CUmemoryPool* handle, const CUmemPoolProps* props) {
  return entry("cuMemPoolCreate", [&] {
    fake::driver_state& now = state();
    const std::lock_guard lock(now.mutex);
    if (handle == nullptr || props == nullptr ||
        props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        (props->handleTypes != CU_MEM_HANDLE_TYPE_NONE &&
         props->handleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto made = std::make_shared<pool>();
    made->gpu = now.gpu_of(props->location.id);
    if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE || made->gpu == now.gpus.size()) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    made->handle_types = props->handleTypes;
    made->fd = fake::make_gpu_file(now.gpus[made->gpu], fake::file_kind::pool, 0);
    if (!made->fd) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = add_pool(std::move(made));
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemPoolDestroy(CUmemoryPool handle) {
  return entry("cuMemPoolDestroy", [&] {
    const std::lock_guard lock(state().mutex);
    return pools().erase(handle) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuda::cuMemPoolSetAccess(CUmemoryPool handle,
                                  const CUmemAccessDesc* descriptions,
                                  std::size_t count) {
  return entry("cuMemPoolSetAccess", [&] {
    fake::driver_state& now = state();
    const std::lock_guard lock(now.mutex);
    const auto found = find_pool(handle);
    if (found == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t gpu = now.gpu_of(descriptions[i].location.id);
      if (gpu == now.gpus.size() || (gpu != found->gpu && !now.peers(gpu, found->gpu))) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemAllocFromPoolAsync(CUdeviceptr* pointer,
                                       std::size_t size,
                                       CUmemoryPool handle,
                                       CUstream stream) {
  return entry("cuMemAllocFromPoolAsync", [&] {
    if (fake::find_stream(stream) == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    fake::driver_state& now = state();
    const std::lock_guard lock(now.mutex);
    const auto found = find_pool(handle);
    const std::size_t whole =
        (size + allocation_step_bytes - 1) / allocation_step_bytes * allocation_step_bytes;
    if (found == nullptr || found->imported || pointer == nullptr || size == 0 || whole < size) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::size_t offset = first_gap(*found, whole);
    if (whole > now.free_bytes(found->gpu) ||
        !fake::allocate_range(found->fd.get(), offset, whole)) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    auto memory = std::make_shared<pool_memory>();
    memory->from = found;
    memory->offset_bytes = offset;
    memory->size_bytes = whole;
    found->used.emplace(offset, whole);
    now.own_bytes[found->gpu] += whole;
    memory->memory =
        fake::map_gpu_file(found->fd.get(), offset, whole, PROT_READ | PROT_WRITE, nullptr);
    if (memory->memory == nullptr) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pointer = add_range(std::move(memory), size);
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
  return entry("cuMemFreeAsync", [&] {
    const auto order = fake::find_stream(stream);
    if (order == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (const CUresult result = order->drain(); result != CUDA_SUCCESS) {
      return result;
    }
    const std::lock_guard lock(state().mutex);
    return fake::free_pool_memory(pointer);
  });
}

CUresult cuda::cuMemPoolExportToShareableHandle(void* shareable,
                                                CUmemoryPool handle,
                                                CUmemAllocationHandleType type,
                                                unsigned long long flags) {
  return entry("cuMemPoolExportToShareableHandle", [&] {
    const std::lock_guard lock(state().mutex);
    const auto found = find_pool(handle);
    if (found == nullptr || found->imported || shareable == nullptr || flags != 0 ||
        type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || type != found->handle_types) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const int fd = ::fcntl(found->fd.get(), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *static_cast<int*>(shareable) = fd;
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemPoolImportFromShareableHandle(CUmemoryPool* handle,
                                                  void* shareable,
                                                  CUmemAllocationHandleType type,
                                                  unsigned long long flags) {
  return entry("cuMemPoolImportFromShareableHandle", [&] {
    fake::driver_state& now = state();
    const std::lock_guard lock(now.mutex);
    const int fd = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
    const auto header = fake::read_header(fd);
    if (handle == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0 ||
        !header || header->kind != fake::file_kind::pool) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::size_t gpu = now.index_of(header->uuid);
    if (gpu == now.gpus.size() || !now.gpus[gpu].openable) {
      crash();
    }
    auto imported = std::make_shared<pool>();
    imported->gpu = gpu;
    imported->imported = true;
    imported->handle_types = type;
    imported->fd = base::unique_fd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!imported->fd) {
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *handle = add_pool(std::move(imported));
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemPoolExportPointer(CUmemPoolPtrExportData* data, CUdeviceptr pointer) {
  return entry("cuMemPoolExportPointer", [&] {
    const std::lock_guard lock(state().mutex);
    const fake::range* const found = state().ranges.find(pointer);
    if (data == nullptr || found == nullptr || found->kind != range_kind::pool) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto& memory = *static_cast<const pool_memory*>(found->owner.get());
    if (memory.from->handle_types == CU_MEM_HANDLE_TYPE_NONE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    pointer_layout layout{{}, memory.offset_bytes, memory.size_bytes, found->size_bytes};
    std::memcpy(layout.magic, pointer_magic, sizeof(pointer_magic));
    std::memset(data, 0, sizeof(*data));
    std::memcpy(data->reserved, &layout, sizeof(layout));
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemPoolImportPointer(CUdeviceptr* pointer,
                                      CUmemoryPool handle,
                                      CUmemPoolPtrExportData* data) {
  return entry("cuMemPoolImportPointer", [&] {
    const std::lock_guard lock(state().mutex);
    const auto found = find_pool(handle);
    if (pointer == nullptr || data == nullptr || found == nullptr || !found->imported) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    pointer_layout layout{};
    std::memcpy(&layout, data->reserved, sizeof(layout));
    struct stat status {};
    if (std::memcmp(layout.magic, pointer_magic, sizeof(pointer_magic)) != 0 ||
        ::fstat(found->fd.get(), &status) != 0 || layout.asked_bytes > layout.size_bytes ||
        layout.offset_bytes + layout.size_bytes >
            static_cast<std::uint64_t>(status.st_size) - fake::header_bytes) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto memory = std::make_shared<pool_memory>();
    memory->from = found;
    memory->offset_bytes = layout.offset_bytes;
    memory->size_bytes = layout.size_bytes;
    memory->memory = fake::map_gpu_file(
        found->fd.get(), layout.offset_bytes, layout.size_bytes, PROT_READ | PROT_WRITE, nullptr);
    if (memory->memory == nullptr) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pointer = add_range(std::move(memory), layout.asked_bytes);
    return CUDA_SUCCESS;
  });
}
