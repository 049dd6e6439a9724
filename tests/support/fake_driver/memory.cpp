// SPDX-License-Identifier: Apache-2.0
// Plain allocations, host registration, copies and sets.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/files/page_size.hpp"
#include "tests/support/fake_driver/gpu_file.hpp"
#include "tests/support/fake_driver/legacy.hpp"
#include "tests/support/fake_driver/pool.hpp"
#include "tests/support/fake_driver/state.hpp"
#include "tests/support/fake_driver/streams.hpp"

using namespace gpushm;
using namespace gpushm::cuda;
using gpushm::fake::as_address;
using gpushm::fake::as_pointer;
using gpushm::fake::entry;
using gpushm::fake::granularity_bytes;
using gpushm::fake::range_kind;
using gpushm::fake::state;

namespace {

bool may_use(CUdeviceptr pointer, std::size_t size, bool write) {
  const std::lock_guard lock(state().mutex);
  return state().ranges.allows(pointer, size, write);
}

// Checks the host side of a copy: inaccessible device memory would be a SIGSEGV of this process.
bool host_may_use(const void* pointer, std::size_t size, bool write) {
  const std::lock_guard lock(state().mutex);
  return pointer != nullptr && (state().ranges.find(as_address(pointer)) == nullptr ||
                                state().ranges.allows(as_address(pointer), size, write));
}

bool is_pinned(const void* pointer) {
  const std::lock_guard lock(state().mutex);
  return state().ranges.find(as_address(pointer)) != nullptr;
}

// Runs a copy or set: immediately after the blocking streams, or on a stream.
template <typename Action>
CUresult now_or_on(bool async, CUstream handle, Action&& action) {
  if (!async) {
    const CUresult result = fake::drain_blocking_streams();
    if (result == CUDA_SUCCESS) {
      action();
    }
    return result;
  }
  const auto stream = fake::find_stream(handle);
  if (stream == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  stream->enqueue([action](const std::atomic<bool>&) { action(); });
  return CUDA_SUCCESS;
}

CUresult copy_in(
    CUdeviceptr target, const void* source, std::size_t size, bool async, CUstream stream) {
  if (!may_use(target, size, true) || !host_may_use(source, size, false)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!async) {
    return now_or_on(false, stream, [=] { std::memcpy(as_pointer(target), source, size); });
  }
  // Pageable memory may be reused once the call returns, so its bytes are copied now.
  const auto* const bytes = static_cast<const unsigned char*>(source);
  return now_or_on(true, stream, [target, copied = std::vector(bytes, bytes + size)] {
    std::memcpy(as_pointer(target), copied.data(), copied.size());
  });
}

CUresult copy_out(void* target, CUdeviceptr source, std::size_t size, bool async, CUstream stream) {
  if (!may_use(source, size, false) || !host_may_use(target, size, true)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult enqueued =
      now_or_on(async, stream, [=] { std::memcpy(target, as_pointer(source), size); });
  if (!async || enqueued != CUDA_SUCCESS || is_pinned(target)) {
    return enqueued;
  }
  return fake::find_stream(stream)->drain();  // as measured: the call returns when it is done
}

CUresult copy_across(
    CUdeviceptr target, CUdeviceptr source, std::size_t size, bool async, CUstream stream) {
  if (!may_use(target, size, true) || !may_use(source, size, false)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return now_or_on(
      async, stream, [=] { std::memmove(as_pointer(target), as_pointer(source), size); });
}

CUresult set_bytes(
    CUdeviceptr target, unsigned char value, std::size_t count, bool async, CUstream stream) {
  if (!may_use(target, count, true)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return now_or_on(async, stream, [=] { std::memset(as_pointer(target), value, count); });
}

CUresult set_words(
    CUdeviceptr target, unsigned int value, std::size_t count, bool async, CUstream stream) {
  if (count > SIZE_MAX / sizeof(value) || target % sizeof(value) != 0 ||
      !may_use(target, count * sizeof(value), true)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return now_or_on(async, stream, [=] {
    std::fill_n(static_cast<unsigned int*>(as_pointer(target)), count, value);
  });
}

bool is_mapped(void* address, std::size_t size) {
  const std::uint64_t page = gpushm::base::host_page_bytes();
  const CUdeviceptr first = as_address(address) / page * page;
  return ::msync(as_pointer(first), as_address(address) + size - first, MS_ASYNC) == 0;
}

}  // namespace

CUresult cuda::cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
  return entry("cuMemGetInfo_v2", [&] {
    fake::driver_state& now = state();
    const std::lock_guard lock(now.mutex);
    const fake::context* const current = fake::current_context();
    if (current == nullptr) {
      return fake::why_no_context();
    }
    fake::sweep_dead_exports(now.gpus[current->gpu].directory);
    fake::trim_pools();
    *free_bytes = now.free_bytes(current->gpu);
    *total_bytes = fake::read_memory_state(now.gpus[current->gpu]).total_bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemAlloc_v2(CUdeviceptr* pointer, std::size_t size) {
  return entry("cuMemAlloc_v2", [&] {
    fake::driver_state& now = state();
    const std::lock_guard lock(now.mutex);
    const fake::context* const current = fake::current_context();
    if (current == nullptr) {
      return fake::why_no_context();
    }
    if (pointer == nullptr || size == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::size_t whole =
        (size + granularity_bytes - 1) / granularity_bytes * granularity_bytes;
    if (whole < size) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (whole > now.free_bytes(current->gpu)) {
      fake::sweep_dead_exports(now.gpus[current->gpu].directory);
      if (whole > now.free_bytes(current->gpu)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
      }
    }
    auto created = std::make_shared<fake::legacy_memory>();
    created->gpu = current->gpu;
    created->fd = fake::make_gpu_file(now.gpus[created->gpu], fake::file_kind::legacy, whole);
    if (!created->fd) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    created->size_bytes = whole;
    created->memory = fake::map_gpu_file_aligned(
        created->fd.get(), whole, PROT_READ | PROT_WRITE, granularity_bytes);
    if (created->memory == nullptr) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    now.own_bytes[created->gpu] += whole;
    fake::range added;
    added.base = as_address(created->memory);
    added.size_bytes = size;
    added.kind = range_kind::legacy;
    added.gpu = created->gpu;
    added.context = created->gpu;
    added.readable = true;
    added.writable = true;
    added.buffer_id = now.ranges.next_buffer_id();
    added.owner = std::move(created);
    *pointer = added.base;
    now.ranges.add(std::move(added));
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemFree_v2(CUdeviceptr pointer) {
  return entry("cuMemFree_v2", [&] {
    if (pointer == 0) {
      return CUDA_SUCCESS;
    }
    static_cast<void>(fake::drain_blocking_streams());
    const std::lock_guard lock(state().mutex);
    const fake::range* const range = state().ranges.find(pointer);
    if (range == nullptr || range->base != pointer) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (range->kind == range_kind::pool) {
      return fake::free_pool_memory(pointer);
    }
    if (range->kind != range_kind::legacy) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    state().ranges.remove(pointer);
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemHostAlloc(void** address, std::size_t size, unsigned int /*flags*/) {
  return entry("cuMemHostAlloc", [&] {
    fake::driver_state& now = state();
    const std::lock_guard lock(now.mutex);
    const fake::context* const current = fake::current_context();
    if (current == nullptr) {
      return fake::why_no_context();
    }
    if (address == nullptr || size == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    void* const memory =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fake::range added;
    added.base = as_address(memory);
    added.size_bytes = size;
    added.kind = range_kind::host;
    added.gpu = current->gpu;
    added.context = current->gpu;
    added.readable = true;
    added.writable = true;
    added.buffer_id = now.ranges.next_buffer_id();
    added.owner = std::shared_ptr<void>(memory, [size](void* mapped) { ::munmap(mapped, size); });
    now.ranges.add(std::move(added));
    *address = memory;
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemFreeHost(void* address) {
  return entry("cuMemFreeHost", [&] {
    // As the driver: streams may use the memory.
    if (const CUresult drained = fake::drain_all_streams(); drained != CUDA_SUCCESS) {
      return drained;
    }
    const std::lock_guard lock(state().mutex);
    const fake::range* const range = state().ranges.find(as_address(address));
    if (range == nullptr || range->kind != range_kind::host || range->owner == nullptr ||
        range->base != as_address(address)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    state().ranges.remove(range->base);
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemHostRegister_v2(void* address, std::size_t size, unsigned int flags) {
  return entry("cuMemHostRegister_v2", [&] {
    fake::driver_state& now = state();
    const std::lock_guard lock(now.mutex);
    const fake::context* const current = fake::current_context();
    if (current == nullptr) {
      return fake::why_no_context();
    }
    if (address == nullptr || size == 0 || !is_mapped(address, size)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    fake::range added;
    added.base = as_address(address);
    added.size_bytes = size;
    added.kind = range_kind::host;
    added.gpu = current->gpu;
    added.readable = true;
    added.writable = (flags & memhostregister_read_only) == 0;
    added.buffer_id = now.ranges.next_buffer_id();
    return now.ranges.add(std::move(added)) ? CUDA_SUCCESS
                                            : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  });
}

CUresult cuda::cuMemHostUnregister(void* address) {
  return entry("cuMemHostUnregister", [&] {
    // As the driver: streams may use the memory.
    if (const CUresult drained = fake::drain_all_streams(); drained != CUDA_SUCCESS) {
      return drained;
    }
    const std::lock_guard lock(state().mutex);
    const fake::range* const range = state().ranges.find(as_address(address));
    if (range == nullptr || range->kind != range_kind::host || range->owner != nullptr ||
        range->base != as_address(address)) {
      return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    state().ranges.remove(range->base);
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemHostGetDevicePointer_v2(CUdeviceptr* pointer,
                                            void* address,
                                            unsigned int flags) {
  return entry("cuMemHostGetDevicePointer_v2", [&] {
    const std::lock_guard lock(state().mutex);
    const fake::range* const range = state().ranges.find(as_address(address));
    if (range == nullptr || range->kind != range_kind::host || flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *pointer = as_address(address);
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemcpyHtoD_v2(CUdeviceptr target, const void* source, std::size_t size) {
  return entry("cuMemcpyHtoD_v2", [&] { return copy_in(target, source, size, false, nullptr); });
}

CUresult cuda::cuMemcpyDtoH_v2(void* target, CUdeviceptr source, std::size_t size) {
  return entry("cuMemcpyDtoH_v2", [&] { return copy_out(target, source, size, false, nullptr); });
}

CUresult cuda::cuMemcpyDtoD_v2(CUdeviceptr target, CUdeviceptr source, std::size_t size) {
  return entry("cuMemcpyDtoD_v2",
               [&] { return copy_across(target, source, size, false, nullptr); });
}

CUresult cuda::cuMemcpyHtoDAsync_v2(CUdeviceptr target,
                                    const void* source,
                                    std::size_t size,
                                    CUstream stream) {
  return entry("cuMemcpyHtoDAsync_v2", [&] { return copy_in(target, source, size, true, stream); });
}

CUresult cuda::cuMemcpyDtoHAsync_v2(void* target,
                                    CUdeviceptr source,
                                    std::size_t size,
                                    CUstream stream) {
  return entry("cuMemcpyDtoHAsync_v2",
               [&] { return copy_out(target, source, size, true, stream); });
}

CUresult cuda::cuMemcpyDtoDAsync_v2(CUdeviceptr target,
                                    CUdeviceptr source,
                                    std::size_t size,
                                    CUstream stream) {
  return entry("cuMemcpyDtoDAsync_v2",
               [&] { return copy_across(target, source, size, true, stream); });
}

CUresult cuda::cuMemsetD8_v2(CUdeviceptr target, unsigned char value, std::size_t count) {
  return entry("cuMemsetD8_v2", [&] { return set_bytes(target, value, count, false, nullptr); });
}

CUresult cuda::cuMemsetD8Async(CUdeviceptr target,
                               unsigned char value,
                               std::size_t count,
                               CUstream stream) {
  return entry("cuMemsetD8Async", [&] { return set_bytes(target, value, count, true, stream); });
}

CUresult cuda::cuMemsetD32_v2(CUdeviceptr target, unsigned int value, std::size_t count) {
  return entry("cuMemsetD32_v2", [&] { return set_words(target, value, count, false, nullptr); });
}

CUresult cuda::cuMemsetD32Async(CUdeviceptr target,
                                unsigned int value,
                                std::size_t count,
                                CUstream stream) {
  return entry("cuMemsetD32Async", [&] { return set_words(target, value, count, true, stream); });
}
