// SPDX-License-Identifier: Apache-2.0
// Memory pools with descriptor handles: one file per pool, allocations at offsets in it. An
// importer locks the parts that it maps, so that the exporter does not return them to the device
// when it frees them: as with the real driver, the importer sees the old contents until the pool
// reuses the memory.
#include "tests/support/fake_driver/pool.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "tests/support/fake_driver/gpu_file.hpp"
#include "tests/support/fake_driver/state.hpp"
#include "tests/support/fake_driver/streams.hpp"

using namespace gpushm;
using namespace gpushm::cuda;
using gpushm::fake::as_address;
using gpushm::fake::entry;
using gpushm::fake::range_kind;
using gpushm::fake::state;

namespace {

constexpr std::size_t allocation_step_bytes = 64UL << 10U;

// Address space for all memory that a pool created here can hold: as in the real driver, an offset
// is always mapped at the same address, whatever the process maps in the meantime.
class address_window {
 public:
  address_window() = default;
  address_window(const address_window&) = delete;
  address_window& operator=(const address_window&) = delete;
  ~address_window() {
    if (start_ != nullptr) {
      ::munmap(start_, size_bytes_);
    }
  }

  [[nodiscard]] bool reserve(std::size_t size_bytes) {
    void* const start = reserved(nullptr, size_bytes);
    if (start != nullptr) {
      start_ = static_cast<char*>(start);
      size_bytes_ = size_bytes;
    }
    return start != nullptr;
  }

  // Address of [offset, offset + bytes); null when it does not fit.
  [[nodiscard]] void* at(std::size_t offset, std::size_t bytes) const {
    return offset <= size_bytes_ && bytes <= size_bytes_ - offset ? start_ + offset : nullptr;
  }

  static void release(void* memory, std::size_t bytes) { reserved(memory, bytes); }

 private:
  static void* reserved(void* address, std::size_t bytes) {
    void* const mapped =
        ::mmap(address,
               bytes,
               PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (address == nullptr ? 0 : MAP_FIXED),
               -1,
               0);
    return mapped == MAP_FAILED ? nullptr : mapped;
  }

  char* start_ = nullptr;
  std::size_t size_bytes_ = 0;
};

struct pool {
  std::size_t gpu = 0;
  base::unique_fd fd;
  CUmemAllocationHandleType handle_types = CU_MEM_HANDLE_TYPE_NONE;
  bool imported = false;
  bool is_default = false;
  bool exported = false;     // its descriptor was requested; until then pointers are not exported
  std::size_t pointers = 0;  // outstanding, of an imported pool
  dev_t device = 0;          // of an imported pool: identifies the file
  ino_t inode = 0;
  std::map<std::size_t, std::size_t> used;  // offset → bytes; of a pool created here
  address_window window;                    // of a pool created here
};

struct flock lock_of(short type, std::size_t begin, std::size_t end) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(fake::header_bytes() + begin);
  lock.l_len = static_cast<off_t>(end - begin);
  return lock;
}

// Returns [begin, end) to the device unless an importer maps part of it.
void punch(const pool& pool, std::size_t begin, std::size_t end) {
  struct flock lock = lock_of(F_WRLCK, begin, end);
  if (begin < end && ::fcntl(pool.fd.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK) {
    ::fallocate(pool.fd.get(),
                FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(fake::header_bytes() + begin),
                static_cast<off_t>(end - begin));
  }
}

void trim(const pool& pool) {
  struct stat status {};
  if (::fstat(pool.fd.get(), &status) != 0) {
    return;
  }
  std::size_t at = 0;
  for (const auto& [offset, bytes] : pool.used) {
    punch(pool, at, offset);
    at = offset + bytes;
  }
  punch(pool, at, static_cast<std::size_t>(status.st_size) - fake::header_bytes());
}

struct pool_memory {
  pool_memory() = default;
  pool_memory(const pool_memory&) = delete;
  pool_memory& operator=(const pool_memory&) = delete;
  ~pool_memory() {
    if (from->imported) {
      if (memory != nullptr) {
        ::munmap(memory, size_bytes);
      }
      --from->pointers;
    } else {
      if (memory != nullptr) {
        address_window::release(memory, size_bytes);
      }
      from->used.erase(offset_bytes);
      state().own_bytes[from->gpu] -= size_bytes;
      trim(*from);
    }
  }

  std::shared_ptr<pool> from;
  std::size_t offset_bytes = 0;
  std::size_t size_bytes = 0;
  void* memory = nullptr;
  base::unique_fd lock;  // of an importer
  int imports = 1;       // of an importer: each import is freed separately
};

// Contents of the data of cuMemPoolExportPointer.
struct pointer_layout {
  char magic[8];
  std::uint64_t offset_bytes;
  std::uint64_t size_bytes;
  std::uint64_t requested_bytes;
};
static_assert(sizeof(pointer_layout) <= sizeof(CUmemPoolPtrExportData));
constexpr char pointer_magic[8] = {'f', 'a', 'k', 'e', 'p', 't', 'r', '1'};

// Guarded by the state's mutex; never destroyed, like the state.
std::map<CUmemoryPool, std::shared_ptr<pool>>& pools() {
  static auto* const known = new std::map<CUmemoryPool, std::shared_ptr<pool>>();
  return *known;
}

std::shared_ptr<pool> find_pool(CUmemoryPool handle) {
  const auto found = pools().find(handle);
  return found == pools().end() ? nullptr : found->second;
}

CUmemoryPool add_pool(std::shared_ptr<pool> added) {
  const auto handle = reinterpret_cast<CUmemoryPool>(added.get());
  pools().emplace(handle, std::move(added));
  return handle;
}

std::size_t first_gap(const pool& pool, std::size_t size) {
  std::size_t at = 0;
  for (const auto& [offset, bytes] : pool.used) {
    if (offset - at >= size) {
      break;
    }
    at = offset + bytes;
  }
  return at;
}

// Room for twice the GPU's memory, because gaps between allocations can stay unused.
bool make_memory(pool& target) {
  const fake::gpu_view& gpu = state().gpus[target.gpu];
  target.fd = fake::make_gpu_file(gpu, fake::file_kind::pool, 0);
  return target.fd && target.window.reserve(2 * fake::read_memory_state(gpu).total_bytes);
}

// The default pool of a GPU is created when it is first requested.
CUmemoryPool default_pool(std::size_t gpu) {
  static auto* const known = new std::map<std::size_t, CUmemoryPool>();
  const auto entry = known->find(gpu);
  if (entry != known->end()) {
    return entry->second;
  }
  auto created = std::make_shared<pool>();
  created->gpu = gpu;
  created->is_default = true;
  return make_memory(*created) ? known->emplace(gpu, add_pool(std::move(created))).first->second
                               : nullptr;
}

CUdeviceptr add_range(std::shared_ptr<pool_memory> memory, std::size_t requested_bytes) {
  fake::range added;
  added.base = as_address(memory->memory);
  added.size_bytes = requested_bytes;
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

// The real driver crashes when a pool of a GPU that is not permitted here is imported, and can
// crash when the data of an exported pointer were changed.
void crash() {
  void* const page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *static_cast<volatile char*>(page) = 1;
}

CUresult allocate(const std::shared_ptr<pool>& pool, std::size_t size, CUdeviceptr* pointer) {
  fake::driver_state& now = state();
  const std::size_t whole =
      (size + allocation_step_bytes - 1) / allocation_step_bytes * allocation_step_bytes;
  if (pool == nullptr || pool->imported || pointer == nullptr || size == 0 || whole < size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  trim(*pool);
  const std::size_t offset = first_gap(*pool, whole);
  void* const address = pool->window.at(offset, whole);
  if (address == nullptr || whole > now.free_bytes(pool->gpu) ||
      !fake::allocate_range(pool->fd.get(), offset, whole)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  auto memory = std::make_shared<pool_memory>();
  memory->from = pool;
  memory->offset_bytes = offset;
  memory->size_bytes = whole;
  pool->used.emplace(offset, whole);
  now.own_bytes[pool->gpu] += whole;
  memory->memory =
      fake::map_gpu_file(pool->fd.get(), offset, whole, PROT_READ | PROT_WRITE, address);
  if (memory->memory == nullptr) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *pointer = add_range(std::move(memory), size);
  return CUDA_SUCCESS;
}

// Imports an already imported pointer again; false when it is not imported.
bool import_again(const pool& pool, const pointer_layout& layout, CUdeviceptr* pointer) {
  for (auto& [base, each] : state().ranges.all()) {
    if (each.kind != range_kind::pool) {
      continue;
    }
    auto& known = *static_cast<pool_memory*>(each.owner.get());
    if (known.from.get() == &pool && known.offset_bytes == layout.offset_bytes &&
        known.size_bytes == layout.size_bytes && each.size_bytes == layout.requested_bytes) {
      ++known.imports;
      *pointer = base;
      return true;
    }
  }
  return false;
}

// Locks the range that `memory` maps, through a separate descriptor that holds the lock. The pool's
// other descriptors share one open file description with the exporter.
base::unique_fd lock_import(const pool_memory& memory) {
  char path[40];
  std::snprintf(path, sizeof(path), "/proc/self/fd/%d", memory.from->fd.get());
  base::unique_fd own(::open(path, O_RDWR | O_CLOEXEC));
  struct flock lock =
      lock_of(F_RDLCK, memory.offset_bytes, memory.offset_bytes + memory.size_bytes);
  if (own && ::fcntl(own.get(), F_OFD_SETLK, &lock) != 0) {
    own.reset();
  }
  return own;
}

CUresult why_no_stream(CUstream handle) {
  return handle == nullptr && fake::why_no_context() == CUDA_ERROR_CONTEXT_IS_DESTROYED
             ? CUDA_ERROR_CONTEXT_IS_DESTROYED
             : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

CUresult fake::free_pool_memory(CUdeviceptr pointer) {
  const fake::range* const range = state().ranges.find(pointer);
  if (range == nullptr || range->kind != range_kind::pool || range->base != pointer) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto& memory = *static_cast<pool_memory*>(range->owner.get());
  if (--memory.imports == 0) {
    state().ranges.remove(pointer);
  }
  return CUDA_SUCCESS;
}

CUmemoryPool fake::pool_of(const fake::range& memory) {
  return reinterpret_cast<CUmemoryPool>(
      static_cast<const pool_memory*>(memory.owner.get())->from.get());
}

CUmemAllocationHandleType fake::pool_handle_types(const fake::range& memory) {
  return static_cast<const pool_memory*>(memory.owner.get())->from->handle_types;
}

void fake::trim_pools() {
  for (const auto& [handle, each] : pools()) {
    if (!each->imported) {
      trim(*each);
    }
  }
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
    auto created = std::make_shared<pool>();
    created->gpu = now.gpu_of(props->location.id);
    if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE || created->gpu == now.gpus.size()) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    created->handle_types = props->handleTypes;
    if (!make_memory(*created)) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = add_pool(std::move(created));
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemPoolDestroy(CUmemoryPool handle) {
  return entry("cuMemPoolDestroy", [&] {
    const std::lock_guard lock(state().mutex);
    const auto pool = find_pool(handle);
    if (pool == nullptr || pool->is_default || pool->pointers > 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    pools().erase(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemPoolSetAccess(CUmemoryPool handle,
                                  const CUmemAccessDesc* descriptions,
                                  std::size_t count) {
  return entry("cuMemPoolSetAccess", [&] {
    fake::driver_state& now = state();
    const std::lock_guard lock(now.mutex);
    const auto pool = find_pool(handle);
    if (pool == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t gpu = now.gpu_of(descriptions[i].location.id);
      if (gpu == now.gpus.size() || (gpu != pool->gpu && !now.peers(gpu, pool->gpu))) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
      if (pool->imported && descriptions[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ) {
        return CUDA_ERROR_NOT_SUPPORTED;
      }
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemPoolTrimTo(CUmemoryPool handle, std::size_t /*keep_bytes*/) {
  return entry("cuMemPoolTrimTo", [&] {
    const std::lock_guard lock(state().mutex);
    const auto pool = find_pool(handle);
    if (pool == nullptr || pool->imported) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    trim(*pool);
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemAllocFromPoolAsync(CUdeviceptr* pointer,
                                       std::size_t size,
                                       CUmemoryPool handle,
                                       CUstream stream) {
  return entry("cuMemAllocFromPoolAsync", [&] {
    if (fake::find_stream(stream) == nullptr) {
      return why_no_stream(stream);
    }
    const std::lock_guard lock(state().mutex);
    return allocate(find_pool(handle), size, pointer);
  });
}

CUresult cuda::cuMemAllocAsync(CUdeviceptr* pointer, std::size_t size, CUstream stream) {
  return entry("cuMemAllocAsync", [&] {
    const auto order = fake::find_stream(stream);
    if (order == nullptr) {
      return why_no_stream(stream);
    }
    const std::lock_guard lock(state().mutex);
    const CUmemoryPool handle = default_pool(order->gpu());
    return handle == nullptr ? CUDA_ERROR_OUT_OF_MEMORY
                             : allocate(find_pool(handle), size, pointer);
  });
}

CUresult cuda::cuDeviceGetDefaultMemPool(CUmemoryPool* handle, CUdevice device) {
  return entry("cuDeviceGetDefaultMemPool", [&] {
    const std::lock_guard lock(state().mutex);
    const std::size_t gpu = state().gpu_of(device);
    if (gpu == state().gpus.size()) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    if (handle == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *handle = default_pool(gpu);
    return *handle == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
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
    const auto pool = find_pool(handle);
    if (pool == nullptr || pool->imported || shareable == nullptr || flags != 0 ||
        type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || type != pool->handle_types) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const int fd = ::fcntl(pool->fd.get(), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
    pool->exported = true;
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
    struct stat status {};
    if (::fstat(fd, &status) != 0) {
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
    for (const auto& [known, each] : pools()) {
      if (each->imported && each->device == status.st_dev && each->inode == status.st_ino) {
        *handle = known;
        return CUDA_SUCCESS;
      }
    }
    auto imported = std::make_shared<pool>();
    imported->gpu = gpu;
    imported->imported = true;
    imported->device = status.st_dev;
    imported->inode = status.st_ino;
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
    const fake::range* const range = state().ranges.find(pointer);
    if (data == nullptr || range == nullptr || range->kind != range_kind::pool) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto& memory = *static_cast<const pool_memory*>(range->owner.get());
    if (!memory.from->exported) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    pointer_layout layout{{}, memory.offset_bytes, memory.size_bytes, range->size_bytes};
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
    const auto pool = find_pool(handle);
    if (pointer == nullptr || data == nullptr || pool == nullptr || !pool->imported) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    pointer_layout layout{};
    std::memcpy(&layout, data->reserved, sizeof(layout));
    if (std::memcmp(layout.magic, pointer_magic, sizeof(pointer_magic)) != 0) {
      crash();
    }
    struct stat status {};
    if (::fstat(pool->fd.get(), &status) != 0 || layout.requested_bytes > layout.size_bytes ||
        layout.offset_bytes + layout.size_bytes >
            static_cast<std::uint64_t>(status.st_size) - fake::header_bytes()) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (import_again(*pool, layout, pointer)) {
      return CUDA_SUCCESS;
    }
    auto memory = std::make_shared<pool_memory>();
    memory->from = pool;
    ++pool->pointers;
    memory->offset_bytes = layout.offset_bytes;
    memory->size_bytes = layout.size_bytes;
    memory->lock = lock_import(*memory);
    if (!memory->lock) {
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
    memory->memory = fake::map_gpu_file(
        pool->fd.get(), layout.offset_bytes, layout.size_bytes, PROT_READ | PROT_WRITE, nullptr);
    if (memory->memory == nullptr) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pointer = add_range(std::move(memory), layout.requested_bytes);
    return CUDA_SUCCESS;
  });
}
