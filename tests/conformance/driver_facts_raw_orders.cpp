// SPDX-License-Identifier: Apache-2.0
// Orders that name addresses, pools or the context themselves.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <utility>

#include "tests/conformance/driver_facts_orders.hpp"

namespace gpushm::conformance {

namespace {

using namespace gpushm::cuda;

// Kept over a reset, which is what is looked at.
CUcontext primary = nullptr;

template <typename Number>
CUmemoryPool as_pool(Number number) {
  return reinterpret_cast<CUmemoryPool>(number);
}
std::uint64_t as_number(const void* pointer) {
  return reinterpret_cast<std::uint64_t>(pointer);
}

CUcontext primary_context() {
  // It is current from the beginning, so the first call finds it before it can be gone.
  if (primary == nullptr) {
    must(cu()->cuCtxGetCurrent(&primary));
  }
  return primary;
}

CUmemAllocationProp plain_properties(CUdevice device) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return prop;
}

void attributes(message& said) {
  std::array<std::uint64_t, plural_attributes.size()> values{};
  std::memset(values.data(), 0xff, sizeof(values));
  std::array<CUpointer_attribute, plural_attributes.size()> wanted = plural_attributes;
  std::array<void*, plural_attributes.size()> data{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    data[i] = &values[i];
  }
  must(cu()->cuPointerGetAttributes(
      static_cast<unsigned int>(wanted.size()), wanted.data(), data.data(), said.number));
  static_assert(sizeof(values) <= sizeof(said.bytes));
  std::memcpy(said.bytes, values.data(), sizeof(values));
}

void create_plain(message& said, CUdevice device) {
  const CUmemAllocationProp prop = plain_properties(device);
  CUmemGenericAllocationHandle handle = 0;
  must(cu()->cuMemCreate(&handle, said.number, &prop, 0));
  CUdeviceptr address = 0;
  must(cu()->cuMemAddressReserve(&address, said.number, 0, 0, 0));
  must(cu()->cuMemMap(address, said.number, 0, handle, 0));
  const CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  must(cu()->cuMemSetAccess(address, said.number, &access, 1));
  said.number = address;
}

base::unique_fd retain_chunk(message& said) {
  CUmemGenericAllocationHandle handle = 0;
  const CUcontext current = said.number2 != 0 ? primary_context() : nullptr;
  if (current != nullptr) {
    must(cu()->cuCtxSetCurrent(nullptr));
  }
  const CUresult result =
      cu()->cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(said.number));
  if (current != nullptr) {
    must(cu()->cuCtxSetCurrent(current));
  }
  must(result);
  CUmemAllocationProp prop{};
  must(cu()->cuMemGetAllocationPropertiesFromHandle(&prop, handle));
  said.number = prop.requestedHandleTypes;
  int exported = -1;
  said.number2 = cu()->cuMemExportToShareableHandle(
      &exported, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  base::unique_fd owner(said.number2 == CUDA_SUCCESS ? exported : -1);
  must(cu()->cuMemRelease(handle));
  return owner;
}

void host_plain(message& said) {
  base::unique_fd fd;
  if (said.number2 != 0) {
    fd = base::unique_fd(::memfd_create("plain", MFD_CLOEXEC));
    if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(said.number)) != 0) {
      throw failed{CUDA_ERROR_OPERATING_SYSTEM};
    }
  }
  void* const memory = ::mmap(nullptr,
                              said.number,
                              PROT_READ | PROT_WRITE,
                              fd ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS,
                              fd.get(),
                              0);
  if (memory == MAP_FAILED) {
    throw failed{CUDA_ERROR_OPERATING_SYSTEM};
  }
  std::memset(memory, 1, said.number);
  said.number = as_number(memory);
}

CUmemoryPool make_pool(std::uint64_t handle_types, CUdevice device) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = static_cast<CUmemAllocationHandleType>(handle_types);
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  CUmemoryPool pool = nullptr;
  must(cu()->cuMemPoolCreate(&pool, &props));
  return pool;
}

// Orders about pools; false when it is none.
bool obey_pool(message& said, int fd, CUdevice device, base::unique_fd& out) {
  CUdeviceptr address = 0;
  CUmemoryPool pool = nullptr;
  CUmemPoolPtrExportData data{};
  static_assert(sizeof(data) == sizeof(said.bytes));
  int exported = -1;
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device},
                               static_cast<CUmemAccess_flags>(said.number2)};
  switch (said.what) {
    case order::default_alloc:
      must(cu()->cuMemAllocAsync(&address, said.number, nullptr));
      must(cu()->cuStreamSynchronize(nullptr));
      must(cu()->cuDeviceGetDefaultMemPool(&pool, device));
      said.number = address;
      said.number2 = as_number(pool);
      return true;
    case order::pool_make:
      said.number = as_number(make_pool(said.number, device));
      return true;
    case order::pool_alloc:
      must(cu()->cuMemAllocFromPoolAsync(&address, said.number, as_pool(said.number2), nullptr));
      must(cu()->cuStreamSynchronize(nullptr));
      said.number = address;
      return true;
    case order::pool_descriptor:
      must(cu()->cuMemPoolExportToShareableHandle(
          &exported, as_pool(said.number), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
      out = base::unique_fd(exported);
      return true;
    case order::pool_pointer:
      must(cu()->cuMemPoolExportPointer(&data, said.number));
      std::memcpy(said.bytes, &data, sizeof(data));
      return true;
    case order::pool_open:
      must(cu()->cuMemPoolImportFromShareableHandle(
          &pool, as_shareable(fd), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
      said.number = as_number(pool);
      return true;
    case order::pool_take_wrong:
      // A sanitizer would make an exit status of it.
      ::signal(SIGSEGV, SIG_DFL);
      [[fallthrough]];
    case order::pool_take:
      std::memcpy(&data, said.bytes, sizeof(data));
      must(cu()->cuMemPoolImportPointer(&address, as_pool(said.number), &data));
      said.number = address;
      return true;
    case order::pool_access:
      must(cu()->cuMemPoolSetAccess(as_pool(said.number), &access, 1));
      return true;
    case order::pool_trim:
      must(cu()->cuMemPoolTrimTo(as_pool(said.number), 0));
      return true;
    case order::pool_destroy:
      must(cu()->cuMemPoolDestroy(as_pool(said.number)));
      return true;
    case order::pool_free:
      must(cu()->cuMemFreeAsync(said.number, nullptr));
      must(cu()->cuStreamSynchronize(nullptr));
      return true;
    default:
      return false;
  }
}

// Orders about the context; false when it is none.
bool obey_context(message& said, CUdevice device) {
  switch (said.what) {
    case order::use_context:
      primary_context();
      must(cu()->cuCtxSetCurrent(said.number != 0 ? primary : nullptr));
      return true;
    case order::push_context:
      must(cu()->cuCtxPushCurrent_v2(primary_context()));
      return true;
    case order::retain_context: {
      CUcontext context = nullptr;
      must(cu()->cuDevicePrimaryCtxRetain(&context, device));
      said.number = as_number(context);
      return true;
    }
    case order::reset_context:
      primary_context();
      must(cu()->cuDevicePrimaryCtxReset_v2(device));
      return true;
    case order::context_active: {
      unsigned int flags = 0;
      int active = -1;
      must(cu()->cuDevicePrimaryCtxGetState(device, &flags, &active));
      said.number = static_cast<std::uint64_t>(static_cast<std::int64_t>(active));
      return true;
    }
    case order::context_id: {
      unsigned long long id = 0;
      must(cu()->cuCtxGetId(primary_context(), &id));
      said.number = id;
      said.number2 = as_number(primary_context());
      return true;
    }
    default:
      return false;
  }
}

}  // namespace

base::unique_fd obey_raw(message& said, int fd, CUdevice device) {
  base::unique_fd out;
  if (obey_pool(said, fd, device, out) || obey_context(said, device)) {
    return out;
  }
  switch (said.what) {
    case order::attribute: {
      std::uint64_t value = 0;
      must(cu()->cuPointerGetAttribute(
          &value, static_cast<CUpointer_attribute>(said.number2), said.number));
      said.number = value;
      break;
    }
    case order::attributes:
      attributes(said);
      break;
    case order::address_range: {
      CUdeviceptr base = 0;
      std::size_t size_bytes = 0;
      must(cu()->cuMemGetAddressRange_v2(&base, &size_bytes, said.number));
      said.number = base;
      said.number2 = size_bytes;
      break;
    }
    case order::create_plain:
      create_plain(said, device);
      break;
    case order::unmap_part:
      must(cu()->cuMemUnmap(said.number, said.number2));
      break;
    case order::retain_chunk:
      out = retain_chunk(said);
      break;
    case order::host_plain:
      host_plain(said);
      break;
    case order::host_alloc: {
      void* memory = nullptr;
      must(cu()->cuMemHostAlloc(&memory, said.number, 0));
      said.number = as_number(memory);
      break;
    }
    case order::host_free:
      must(cu()->cuMemFreeHost(reinterpret_cast<void*>(said.number)));
      break;
    case order::host_register:
      must(cu()->cuMemHostRegister_v2(reinterpret_cast<void*>(said.number), said.number2, 0));
      break;
    case order::host_unregister:
      must(cu()->cuMemHostUnregister(reinterpret_cast<void*>(said.number)));
      break;
    case order::device_free:
      must(cu()->cuMemFree_v2(said.number));
      break;
    default:
      throw failed{CUDA_ERROR_NOT_SUPPORTED};
  }
  return out;
}

}  // namespace gpushm::conformance
