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

// Kept over a reset, because the tests examine it afterwards.
CUcontext primary = nullptr;

template <typename Number>
CUmemoryPool as_pool(Number number) {
  return reinterpret_cast<CUmemoryPool>(number);
}
std::uint64_t as_number(const void* pointer) {
  return reinterpret_cast<std::uint64_t>(pointer);
}

CUcontext primary_context() {
  // It is current from the start, so the first call finds it before it can be destroyed.
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

void attributes(message& io) {
  std::array<std::uint64_t, plural_attributes.size()> values{};
  std::memset(values.data(), 0xff, sizeof(values));
  std::array<CUpointer_attribute, plural_attributes.size()> wanted = plural_attributes;
  std::array<void*, plural_attributes.size()> data{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    data[i] = &values[i];
  }
  must(cu()->cuPointerGetAttributes(
      static_cast<unsigned int>(wanted.size()), wanted.data(), data.data(), io.number));
  static_assert(sizeof(values) <= sizeof(io.bytes));
  std::memcpy(io.bytes, values.data(), sizeof(values));
}

void create_plain(message& io, CUdevice device) {
  const CUmemAllocationProp prop = plain_properties(device);
  CUmemGenericAllocationHandle handle = 0;
  must(cu()->cuMemCreate(&handle, io.number, &prop, 0));
  CUdeviceptr address = 0;
  must(cu()->cuMemAddressReserve(&address, io.number, 0, 0, 0));
  must(cu()->cuMemMap(address, io.number, 0, handle, 0));
  const CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  must(cu()->cuMemSetAccess(address, io.number, &access, 1));
  io.number = address;
}

base::unique_fd retain_chunk(message& io) {
  CUmemGenericAllocationHandle handle = 0;
  const CUcontext current = io.number2 != 0 ? primary_context() : nullptr;
  if (current != nullptr) {
    must(cu()->cuCtxSetCurrent(nullptr));
  }
  const CUresult result =
      cu()->cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(io.number));
  if (current != nullptr) {
    must(cu()->cuCtxSetCurrent(current));
  }
  must(result);
  CUmemAllocationProp prop{};
  must(cu()->cuMemGetAllocationPropertiesFromHandle(&prop, handle));
  io.number = prop.requestedHandleTypes;
  int exported = -1;
  io.number2 = cu()->cuMemExportToShareableHandle(
      &exported, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  base::unique_fd owner(io.number2 == CUDA_SUCCESS ? exported : -1);
  must(cu()->cuMemRelease(handle));
  return owner;
}

void host_plain(message& io) {
  base::unique_fd fd;
  if (io.number2 != 0) {
    fd = base::unique_fd(::memfd_create("plain", MFD_CLOEXEC));
    if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(io.number)) != 0) {
      throw failed{CUDA_ERROR_OPERATING_SYSTEM};
    }
  }
  void* const memory = ::mmap(nullptr,
                              io.number,
                              PROT_READ | PROT_WRITE,
                              fd ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS,
                              fd.get(),
                              0);
  if (memory == MAP_FAILED) {
    throw failed{CUDA_ERROR_OPERATING_SYSTEM};
  }
  std::memset(memory, 1, io.number);
  io.number = as_number(memory);
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

// Executes orders for pools; false if it is not one.
bool execute_pool(message& io, int fd, CUdevice device, base::unique_fd& out) {
  CUdeviceptr address = 0;
  CUmemoryPool pool = nullptr;
  CUmemPoolPtrExportData data{};
  static_assert(sizeof(data) == sizeof(io.bytes));
  int exported = -1;
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device},
                               static_cast<CUmemAccess_flags>(io.number2)};
  switch (io.what) {
    case order::default_alloc:
      must(cu()->cuMemAllocAsync(&address, io.number, nullptr));
      must(cu()->cuStreamSynchronize(nullptr));
      must(cu()->cuDeviceGetDefaultMemPool(&pool, device));
      io.number = address;
      io.number2 = as_number(pool);
      return true;
    case order::pool_make:
      io.number = as_number(make_pool(io.number, device));
      return true;
    case order::pool_alloc:
      must(cu()->cuMemAllocFromPoolAsync(&address, io.number, as_pool(io.number2), nullptr));
      must(cu()->cuStreamSynchronize(nullptr));
      io.number = address;
      return true;
    case order::pool_descriptor:
      must(cu()->cuMemPoolExportToShareableHandle(
          &exported, as_pool(io.number), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
      out = base::unique_fd(exported);
      return true;
    case order::pool_pointer:
      must(cu()->cuMemPoolExportPointer(&data, io.number));
      std::memcpy(io.bytes, &data, sizeof(data));
      return true;
    case order::pool_open:
      must(cu()->cuMemPoolImportFromShareableHandle(
          &pool, as_shareable(fd), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
      io.number = as_number(pool);
      return true;
    case order::pool_take_wrong:
      // A sanitizer would turn it into an exit status.
      ::signal(SIGSEGV, SIG_DFL);
      [[fallthrough]];
    case order::pool_take:
      std::memcpy(&data, io.bytes, sizeof(data));
      must(cu()->cuMemPoolImportPointer(&address, as_pool(io.number), &data));
      io.number = address;
      return true;
    case order::pool_access:
      must(cu()->cuMemPoolSetAccess(as_pool(io.number), &access, 1));
      return true;
    case order::pool_trim:
      must(cu()->cuMemPoolTrimTo(as_pool(io.number), 0));
      return true;
    case order::pool_destroy:
      must(cu()->cuMemPoolDestroy(as_pool(io.number)));
      return true;
    case order::pool_free:
      must(cu()->cuMemFreeAsync(io.number, nullptr));
      must(cu()->cuStreamSynchronize(nullptr));
      return true;
    default:
      return false;
  }
}

// Executes orders for the context; false if it is not one.
bool execute_context(message& io, CUdevice device) {
  switch (io.what) {
    case order::use_context:
      primary_context();
      must(cu()->cuCtxSetCurrent(io.number != 0 ? primary : nullptr));
      return true;
    case order::push_context:
      must(cu()->cuCtxPushCurrent_v2(primary_context()));
      return true;
    case order::retain_context: {
      CUcontext context = nullptr;
      must(cu()->cuDevicePrimaryCtxRetain(&context, device));
      io.number = as_number(context);
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
      io.number = static_cast<std::uint64_t>(static_cast<std::int64_t>(active));
      return true;
    }
    case order::context_id: {
      unsigned long long id = 0;
      must(cu()->cuCtxGetId(primary_context(), &id));
      io.number = id;
      io.number2 = as_number(primary_context());
      return true;
    }
    default:
      return false;
  }
}

}  // namespace

base::unique_fd execute_raw(message& io, int fd, CUdevice device) {
  base::unique_fd out;
  if (execute_pool(io, fd, device, out) || execute_context(io, device)) {
    return out;
  }
  switch (io.what) {
    case order::attribute: {
      std::uint64_t value = 0;
      must(cu()->cuPointerGetAttribute(
          &value, static_cast<CUpointer_attribute>(io.number2), io.number));
      io.number = value;
      break;
    }
    case order::attributes:
      attributes(io);
      break;
    case order::address_range: {
      CUdeviceptr base = 0;
      std::size_t size_bytes = 0;
      must(cu()->cuMemGetAddressRange_v2(&base, &size_bytes, io.number));
      io.number = base;
      io.number2 = size_bytes;
      break;
    }
    case order::create_plain:
      create_plain(io, device);
      break;
    case order::unmap_part:
      must(cu()->cuMemUnmap(io.number, io.number2));
      break;
    case order::retain_chunk:
      out = retain_chunk(io);
      break;
    case order::host_plain:
      host_plain(io);
      break;
    case order::host_alloc: {
      void* memory = nullptr;
      must(cu()->cuMemHostAlloc(&memory, io.number, 0));
      io.number = as_number(memory);
      break;
    }
    case order::host_free:
      must(cu()->cuMemFreeHost(reinterpret_cast<void*>(io.number)));
      break;
    case order::host_register:
      must(cu()->cuMemHostRegister_v2(reinterpret_cast<void*>(io.number), io.number2, 0));
      break;
    case order::host_unregister:
      must(cu()->cuMemHostUnregister(reinterpret_cast<void*>(io.number)));
      break;
    case order::device_free:
      must(cu()->cuMemFree_v2(io.number));
      break;
    default:
      throw failed{CUDA_ERROR_NOT_SUPPORTED};
  }
  return out;
}

}  // namespace gpushm::conformance
