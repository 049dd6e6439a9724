// SPDX-License-Identifier: Apache-2.0
// Virtual memory management: chunks, reservations, mappings, access.
#include "tests/support/fake_driver/vmm.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <map>
#include <utility>

#include "tests/support/fake_driver/state.hpp"

using namespace gpushm;
using namespace gpushm::cuda;
using gpushm::fake::as_address;
using gpushm::fake::as_pointer;
using gpushm::fake::chunk;
using gpushm::fake::entry;
using gpushm::fake::granularity_bytes;
using gpushm::fake::state;

namespace {

struct handle_entry {
  std::shared_ptr<chunk> memory;
  int references = 1;
};

// Guarded by the state's mutex; never destroyed, like the state.
struct tables {
  std::map<CUmemGenericAllocationHandle, handle_entry> handles;
  std::map<CUdeviceptr, std::size_t> reservations;
  CUmemGenericAllocationHandle last_handle = 0;
};

tables& all() {
  static tables* const created = new tables();
  return *created;
}

bool aligned(std::uint64_t value) {
  return value % granularity_bytes == 0;
}

CUmemGenericAllocationHandle add_handle(std::shared_ptr<chunk> memory) {
  const CUmemGenericAllocationHandle handle = ++all().last_handle;
  all().handles.emplace(handle, handle_entry{std::move(memory)});
  return handle;
}

chunk* find_chunk(CUmemGenericAllocationHandle handle) {
  const auto found = all().handles.find(handle);
  return found == all().handles.end() ? nullptr : found->second.memory.get();
}

CUresult check_properties(const CUmemAllocationProp& prop) {
  if (prop.type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      state().gpu_of(prop.location.id) == state().gpus.size()) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  if (prop.requestedHandleTypes == CU_MEM_HANDLE_TYPE_FABRIC) {
    // As with the real driver without an IMEX channel.
    return CUDA_ERROR_NOT_PERMITTED;
  }
  return prop.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE ||
                 prop.requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
             ? CUDA_SUCCESS
             : CUDA_ERROR_NOT_SUPPORTED;
}

// Restores inaccessible pages, which a reservation consists of.
bool make_inaccessible(CUdeviceptr pointer, std::size_t size) {
  return ::mmap(as_pointer(pointer),
                size,
                PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
                -1,
                0) != MAP_FAILED;
}

bool is_reserved(CUdeviceptr pointer, std::size_t size) {
  const auto [base, reserved] = fake::reservation_of(pointer);
  return reserved > 0 && size <= reserved - (pointer - base);
}

// Runs `body` for each mapping of [pointer, pointer + size) if these are exactly whole mappings
// without a gap.
template <typename Body>
CUresult for_mappings(CUdeviceptr pointer, std::size_t size, Body&& body) {
  auto& ranges = state().ranges;
  for (int pass = 0; pass < 2; ++pass) {
    CUdeviceptr at = pointer;
    while (at < pointer + size) {
      fake::range* const range = ranges.find(at);
      if (range == nullptr || range->kind != fake::range_kind::vmm || range->base != at ||
          range->size_bytes > pointer + size - at) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      at += range->size_bytes;
      // Changes nothing until all mappings have been checked.
      if (pass == 1) {
        body(*range);
      }
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

fake::chunk::~chunk() {
  if (view != nullptr) {
    ::munmap(view, size_bytes);
  }
  if (counted) {
    state().own_bytes[gpu] -= size_bytes;
  }
}

std::pair<CUdeviceptr, std::size_t> fake::reservation_of(CUdeviceptr pointer) {
  const auto after = all().reservations.upper_bound(pointer);
  if (after == all().reservations.begin() ||
      pointer - std::prev(after)->first >= std::prev(after)->second) {
    return {0, 0};
  }
  return *std::prev(after);
}

CUresult cuda::cuMemGetAllocationGranularity(std::size_t* granularity,
                                             const CUmemAllocationProp* prop,
                                             CUmemAllocationGranularity_flags /*option*/) {
  return entry("cuMemGetAllocationGranularity", [&] {
    const std::lock_guard lock(state().mutex);
    const CUresult result = check_properties(*prop);
    if (result == CUDA_SUCCESS) {
      *granularity = granularity_bytes;
    }
    return result;
  });
}

CUresult cuda::cuMemCreate(CUmemGenericAllocationHandle* handle,
                           std::size_t size,
                           const CUmemAllocationProp* prop,
                           unsigned long long flags) {
  return entry("cuMemCreate", [&] {
    fake::driver_state& now = state();
    const std::lock_guard lock(now.mutex);
    if (handle == nullptr || prop == nullptr || size == 0 || !aligned(size) || flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult result = check_properties(*prop); result != CUDA_SUCCESS) {
      return result;
    }
    auto created = std::make_shared<chunk>();
    created->gpu = now.gpu_of(prop->location.id);
    created->rdma = prop->allocFlags.gpuDirectRDMACapable != 0;
    if (created->rdma && !now.gpus[created->gpu].properties.rdma_vmm) {
      // As reported of a GB10 with driver 580.95 (github.com/modular/modular/issues/6961). The
      // documentation only says that the device's attribute must be checked before.
      return CUDA_ERROR_INVALID_DEVICE;
    }
    created->rdma = created->rdma && !now.gpus[created->gpu].properties.rdma_ignored;
    if (size > now.free_bytes(created->gpu)) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    base::unique_fd fd = fake::make_gpu_file(now.gpus[created->gpu], fake::file_kind::chunk, size);
    if (!fd) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    created->size_bytes = size;
    created->view = fake::map_gpu_file(fd.get(), 0, size, PROT_NONE, nullptr);
    if (created->view == nullptr) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    created->handle_types = prop->requestedHandleTypes;
    if (created->handle_types != CU_MEM_HANDLE_TYPE_NONE) {
      created->exportable = std::move(fd);
    }
    created->counted = true;
    now.own_bytes[created->gpu] += size;
    *handle = add_handle(std::move(created));
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemRelease(CUmemGenericAllocationHandle handle) {
  return entry("cuMemRelease", [&] {
    const std::lock_guard lock(state().mutex);
    const auto entry = all().handles.find(handle);
    if (entry == all().handles.end()) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (--entry->second.references == 0) {
      all().handles.erase(entry);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemAddressReserve(CUdeviceptr* pointer,
                                   std::size_t size,
                                   std::size_t alignment,
                                   CUdeviceptr address,
                                   unsigned long long flags) {
  return entry("cuMemAddressReserve", [&] {
    const std::lock_guard lock(state().mutex);
    alignment = alignment == 0 ? granularity_bytes : alignment;
    if (size == 0 || !aligned(size) || (alignment & (alignment - 1)) != 0 || flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    alignment = alignment < granularity_bytes ? granularity_bytes : alignment;
    // Room for an aligned range; the rest is unmapped.
    void* const whole = ::mmap(as_pointer(address),
                               size + alignment,
                               PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                               -1,
                               0);
    if (whole == MAP_FAILED) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const CUdeviceptr start = as_address(whole);
    const CUdeviceptr base = (start + alignment - 1) / alignment * alignment;
    if (base > start) {
      ::munmap(whole, base - start);
    }
    if (start + alignment > base) {
      ::munmap(as_pointer(base + size), start + alignment - base);
    }
    all().reservations.emplace(base, size);
    *pointer = base;
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemAddressFree(CUdeviceptr pointer, std::size_t size) {
  return entry("cuMemAddressFree", [&] {
    const std::lock_guard lock(state().mutex);
    const auto reservation = all().reservations.find(pointer);
    if (reservation == all().reservations.end() || reservation->second != size ||
        state().ranges.overlaps(pointer, size)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    all().reservations.erase(reservation);
    ::munmap(as_pointer(pointer), size);
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemMap(CUdeviceptr pointer,
                        std::size_t size,
                        std::size_t offset,
                        CUmemGenericAllocationHandle handle,
                        unsigned long long flags) {
  return entry("cuMemMap", [&] {
    fake::driver_state& now = state();
    const std::lock_guard lock(now.mutex);
    const auto entry = all().handles.find(handle);
    if (entry == all().handles.end() || size == 0 || offset != 0 || flags != 0 || !aligned(size) ||
        !aligned(pointer) || size > entry->second.memory->size_bytes ||
        !is_reserved(pointer, size) || now.ranges.overlaps(pointer, size)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::shared_ptr<chunk>& memory = entry->second.memory;
    // With an old size of 0, mremap creates a second mapping of the same shared pages, which needs
    // no descriptor.
    if (::mremap(memory->view, 0, size, MREMAP_MAYMOVE | MREMAP_FIXED, as_pointer(pointer)) ==
        MAP_FAILED) {
      return make_inaccessible(pointer, size) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
    }
    fake::range added;
    added.base = pointer;
    added.size_bytes = size;
    added.kind = fake::range_kind::vmm;
    added.gpu = memory->gpu;
    added.buffer_id = now.ranges.next_buffer_id();
    added.owner = memory;
    now.ranges.add(std::move(added));
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemUnmap(CUdeviceptr pointer, std::size_t size) {
  return entry("cuMemUnmap", [&] {
    const std::lock_guard lock(state().mutex);
    if (size == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    std::map<CUdeviceptr, std::size_t> bases;
    const CUresult result = for_mappings(
        pointer, size, [&](const fake::range& each) { bases.emplace(each.base, each.size_bytes); });
    for (const auto& [base, bytes] : bases) {
      if (!make_inaccessible(base, bytes)) {
        return CUDA_ERROR_UNKNOWN;
      }
      static_cast<chunk*>(state().ranges.find(base)->owner.get())->access.erase(base);
      state().ranges.remove(base);
    }
    return result;
  });
}

CUresult cuda::cuMemSetAccess(CUdeviceptr pointer,
                              std::size_t size,
                              const CUmemAccessDesc* descriptions,
                              std::size_t count) {
  return entry("cuMemSetAccess", [&] {
    fake::driver_state& now = state();
    const std::lock_guard lock(now.mutex);
    if (size == 0 || count == 0 || descriptions == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const CUmemAccessDesc& each = descriptions[i];
      const std::size_t gpu = now.gpu_of(each.location.id);
      if (each.location.type != CU_MEM_LOCATION_TYPE_DEVICE || gpu == now.gpus.size()) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
      bool reachable = true;
      const CUresult result = for_mappings(pointer, size, [&](const fake::range& mapping) {
        reachable = reachable && (mapping.gpu == gpu || now.peers(mapping.gpu, gpu));
      });
      if (result != CUDA_SUCCESS) {
        return result;
      }
      if (!reachable) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
    }
    bool done = true;
    const CUresult result = for_mappings(pointer, size, [&](fake::range& mapping) {
      auto& devices = static_cast<chunk*>(mapping.owner.get())->access[mapping.base];
      for (std::size_t i = 0; i < count; ++i) {
        devices[now.gpu_of(descriptions[i].location.id)] = descriptions[i].flags;
      }
      // The CPU represents every device that has been given access.
      unsigned int rights = 0;
      for (const auto& [gpu, flags] : devices) {
        rights |= flags;
      }
      mapping.readable = (rights & CU_MEM_ACCESS_FLAGS_PROT_READ) != 0;
      mapping.writable = rights == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      const int protection =
          (mapping.readable ? PROT_READ : PROT_NONE) | (mapping.writable ? PROT_WRITE : 0);
      done = ::mprotect(as_pointer(mapping.base), mapping.size_bytes, protection) == 0 && done;
    });
    return result == CUDA_SUCCESS && !done ? CUDA_ERROR_OUT_OF_MEMORY : result;
  });
}

CUresult cuda::cuMemExportToShareableHandle(void* shareable,
                                            CUmemGenericAllocationHandle handle,
                                            CUmemAllocationHandleType type,
                                            unsigned long long flags) {
  return entry("cuMemExportToShareableHandle", [&] {
    const std::lock_guard lock(state().mutex);
    const chunk* const memory = find_chunk(handle);
    if (memory == nullptr || shareable == nullptr || flags != 0 || type != memory->handle_types ||
        type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const int fd = ::fcntl(memory->exportable.get(), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *static_cast<int*>(shareable) = fd;
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                              void* shareable,
                                              CUmemAllocationHandleType type) {
  return entry("cuMemImportFromShareableHandle", [&] {
    fake::driver_state& now = state();
    const std::lock_guard lock(now.mutex);
    if (handle == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const int fd = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
    const auto header = fake::read_header(fd);
    if (!header || header->kind != fake::file_kind::chunk || header->size_bytes == 0 ||
        !aligned(header->size_bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::size_t gpu = now.index_of(header->uuid);
    if (gpu == now.gpus.size() || !now.gpus[gpu].openable) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    if (!fake::is_on(fd, now.gpus[gpu])) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto imported = std::make_shared<chunk>();
    imported->gpu = gpu;
    imported->size_bytes = header->size_bytes;
    imported->view = fake::map_gpu_file(fd, 0, header->size_bytes, PROT_NONE, nullptr);
    if (imported->view == nullptr) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = add_handle(std::move(imported));
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return entry("cuMemRetainAllocationHandle", [&] {
    const std::lock_guard lock(state().mutex);
    const fake::range* const range = state().ranges.find(as_address(address));
    if (range == nullptr || range->kind != fake::range_kind::vmm) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    // Returns the same handle, retained once more, while it exists; a new handle after its release.
    for (auto& [value, each] : all().handles) {
      if (each.memory == range->owner) {
        ++each.references;
        *handle = value;
        return CUDA_SUCCESS;
      }
    }
    *handle = add_handle(std::static_pointer_cast<chunk>(range->owner));
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                      CUmemGenericAllocationHandle handle) {
  return entry("cuMemGetAllocationPropertiesFromHandle", [&] {
    const std::lock_guard lock(state().mutex);
    const chunk* const memory = find_chunk(handle);
    if (memory == nullptr || prop == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *prop = {};
    prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop->requestedHandleTypes = memory->handle_types;
    prop->allocFlags.gpuDirectRDMACapable = memory->rdma ? 1 : 0;
    // A GPU that CUDA_VISIBLE_DEVICES hides is reported as device -2 (I5).
    prop->location = {CU_MEM_LOCATION_TYPE_DEVICE, state().device_of(memory->gpu)};
    return CUDA_SUCCESS;
  });
}
