// SPDX-License-Identifier: Apache-2.0
// Attributes of pointers.
#include <cstring>

#include "tests/support/fake_driver/legacy.hpp"
#include "tests/support/fake_driver/pool.hpp"
#include "tests/support/fake_driver/state.hpp"
#include "tests/support/fake_driver/vmm.hpp"

using namespace gpushm;
using namespace gpushm::cuda;
using gpushm::fake::entry;
using gpushm::fake::range_kind;
using gpushm::fake::state;

namespace {

template <typename Value>
CUresult put(void* data, Value value) {
  std::memcpy(data, &value, sizeof(value));
  return CUDA_SUCCESS;
}

// Number of bytes that the driver writes for an attribute.
std::size_t width_of(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return sizeof(bool);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return sizeof(unsigned int);
    default:
      return sizeof(CUdeviceptr);
  }
}

// Handle types of the allocation that an address is part of.
CUmemAllocationHandleType handle_types_of(const fake::range& range) {
  switch (range.kind) {
    case range_kind::vmm:
      return static_cast<const fake::chunk*>(range.owner.get())->handle_types;
    case range_kind::pool:
      return fake::pool_handle_types(range);
    default:
      return CU_MEM_HANDLE_TYPE_NONE;
  }
}

// Whether GPUDirect RDMA may use it: plain allocations if the device supports it, chunks as
// created.
bool is_rdma_capable(const fake::range& range) {
  switch (range.kind) {
    case range_kind::vmm:
      return static_cast<const fake::chunk*>(range.owner.get())->rdma;
    case range_kind::legacy:
    case range_kind::opened:
      return state().gpus[range.gpu].properties.rdma;
    default:
      return false;
  }
}

// Size of one mapping of cuMemMap or cuMemAlloc, which is more than was requested.
std::size_t mapping_bytes(const fake::range& range) {
  return range.kind == range_kind::legacy
             ? static_cast<const fake::legacy_memory*>(range.owner.get())->size_bytes
             : range.size_bytes;
}

CUresult attribute_of(const fake::range& range,
                      CUpointer_attribute attribute,
                      CUdeviceptr pointer,
                      void* data) {
  const bool host = range.kind == range_kind::host;
  const bool vmm = range.kind == range_kind::vmm;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put(data, state().contexts[range.gpu].get());
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put(data, host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return put(data, pointer);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return host ? put(data, pointer) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put(data, static_cast<unsigned long long>(range.buffer_id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return put(data, 0U);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put(data, state().device_of(range.gpu));
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put(data, range.kind == range_kind::legacy);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put(data, vmm ? fake::reservation_of(pointer).first : range.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put(data, vmm ? fake::reservation_of(pointer).second : range.size_bytes);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return put(data, range.base);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return put(data, mapping_bytes(range));
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put(data, true);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put(data, handle_types_of(range));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return put(data, is_rdma_capable(range));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put(data, range.kind == range_kind::pool ? fake::pool_of(range) : nullptr);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return put(data,
                 range.writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                : (range.readable ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                                  : CU_MEM_ACCESS_FLAGS_PROT_NONE));
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

CUresult cuda::cuPointerGetAttribute(void* data,
                                     CUpointer_attribute attribute,
                                     CUdeviceptr pointer) {
  return entry("cuPointerGetAttribute", [&] {
    const std::lock_guard lock(state().mutex);
    const fake::range* const found = state().ranges.find(pointer);
    return found == nullptr ? CUDA_ERROR_INVALID_VALUE
                            : attribute_of(*found, attribute, pointer, data);
  });
}

CUresult cuda::cuPointerGetAttributes(unsigned int count,
                                      CUpointer_attribute* attributes,
                                      void** data,
                                      CUdeviceptr pointer) {
  return entry("cuPointerGetAttributes", [&] {
    const std::lock_guard lock(state().mutex);
    const fake::range* const range = state().ranges.find(pointer);
    for (unsigned int i = 0; i < count; ++i) {
      // Unlike cuPointerGetAttribute, this function writes zeros for unknown values, except for
      // ranges, which it leaves unchanged.
      const bool of_range = attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
                            attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_SIZE;
      if (range == nullptr
              ? !of_range
              : attribute_of(*range, attributes[i], pointer, data[i]) != CUDA_SUCCESS) {
        std::memset(data[i], 0, width_of(attributes[i]));
      }
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* size, CUdeviceptr pointer) {
  return entry("cuMemGetAddressRange_v2", [&] {
    const std::lock_guard lock(state().mutex);
    const fake::range* const range = state().ranges.find(pointer);
    if (range == nullptr) {
      return CUDA_ERROR_NOT_FOUND;
    }
    if (base != nullptr) {
      *base = range->base;
    }
    if (size != nullptr) {
      *size = range->size_bytes;
    }
    return CUDA_SUCCESS;
  });
}
