// SPDX-License-Identifier: Apache-2.0
#include "tests/share/agent_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "gpu/driver/cuda.hpp"

namespace gpushm_tests {

using namespace gpushm;
using namespace gpushm::cuda;

namespace {

const driver::cuda_driver& cu() {
  return driver::cuda_driver::instance();
}

void check(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error(std::string(call) + ": " + driver::result_text(result));
  }
}

void* pointer(std::uint64_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): CUDA's API
}

}  // namespace

void agent_memory::use_device(int ordinal) {
  ordinal_ = ordinal;
  check(cu()->cuDeviceGet(&device_, ordinal), "cuDeviceGet");
  CUcontext context = nullptr;
  check(cu()->cuDevicePrimaryCtxRetain(&context, device_), "cuDevicePrimaryCtxRetain");
  check(cu()->cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

void agent_memory::reset_device() {
  check(cu()->cuDevicePrimaryCtxReset_v2(device_), "cuDevicePrimaryCtxReset");
  use_device(ordinal_);
}

bool agent_memory::on_host() const {
  return kind_ == "pageable" || kind_ == "pinned" || kind_.starts_with("memfd");
}

void agent_memory::allocate_chunks(std::uint64_t bytes,
                                   std::uint64_t chunk_bytes,
                                   bool exportable) {
  chunk_bytes_ = chunk_bytes == 0 ? bytes : chunk_bytes;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes =
      exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
  CUdeviceptr start = 0;
  check(cu()->cuMemAddressReserve(&start, bytes, 0, 0, 0), "cuMemAddressReserve");
  for (std::uint64_t at = 0; at < bytes; at += chunk_bytes_) {
    CUmemGenericAllocationHandle handle = 0;
    check(cu()->cuMemCreate(&handle, chunk_bytes_, &prop, 0), "cuMemCreate");
    check(cu()->cuMemMap(start + at, chunk_bytes_, 0, handle, 0), "cuMemMap");
    check(cu()->cuMemRelease(handle),
          "cuMemRelease");  // as allocators do: the mapping keeps the memory
  }
  CUmemAccessDesc rights{};
  rights.location = prop.location;
  rights.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  check(cu()->cuMemSetAccess(start, bytes, &rights, 1), "cuMemSetAccess");
  address_ = start;
}

void agent_memory::allocate_memfd(std::uint64_t bytes, bool sealed) {
  file_ = base::unique_fd(::memfd_create("agent", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (::ftruncate(file_.get(), static_cast<off_t>(bytes)) != 0 ||
      (sealed &&
       ::fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)) {
    throw std::runtime_error("memfd");
  }
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (mapped == MAP_FAILED) {  // NOLINT(performance-no-int-to-ptr): the macro is a cast
    throw std::runtime_error("mmap");
  }
  address_ = reinterpret_cast<std::uintptr_t>(mapped);
}

void agent_memory::allocate(const std::string& kind,
                            std::uint64_t bytes,
                            std::uint64_t chunk_bytes) {
  kind_ = kind;
  bytes_ = bytes;
  if (kind == "malloc") {
    CUdeviceptr allocated = 0;
    check(cu()->cuMemAlloc_v2(&allocated, bytes), "cuMemAlloc");
    address_ = allocated;
  } else if (kind == "vmm" || kind == "vmm-plain") {
    allocate_chunks(bytes, chunk_bytes, kind == "vmm");
  } else if (kind == "pool" || kind == "pool-plain" || kind == "default-pool") {
    CUdeviceptr allocated = 0;
    if (kind == "default-pool") {
      check(cu()->cuMemAllocAsync(&allocated, bytes, nullptr), "cuMemAllocAsync");
    } else {
      if (pool_ == nullptr) {
        CUmemPoolProps props{};
        props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        props.handleTypes =
            kind == "pool" ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
        props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
        check(cu()->cuMemPoolCreate(&pool_, &props), "cuMemPoolCreate");
      }
      check(cu()->cuMemAllocFromPoolAsync(&allocated, bytes, pool_, nullptr),
            "cuMemAllocFromPoolAsync");
    }
    check(cu()->cuStreamSynchronize(nullptr), "cuStreamSynchronize");
    address_ = allocated;
  } else if (kind == "pinned") {
    void* allocated = nullptr;
    check(cu()->cuMemHostAlloc(&allocated, bytes, 0), "cuMemHostAlloc");
    address_ = reinterpret_cast<std::uintptr_t>(allocated);
  } else if (kind == "pageable") {
    address_ = reinterpret_cast<std::uintptr_t>(
        std::malloc(bytes));  // NOLINT(cppcoreguidelines-no-malloc): the case under test
  } else if (kind.starts_with("memfd")) {
    allocate_memfd(bytes, kind != "memfd-unsealed");
    if (kind == "memfd-closed") {
      file_.reset();
    }
  } else {
    throw std::runtime_error("unknown kind: " + kind);
  }
}

void agent_memory::free() {
  if (kind_ == "malloc") {
    check(cu()->cuMemFree_v2(address_), "cuMemFree");
  } else if (kind_.starts_with("vmm")) {
    for (std::uint64_t at = 0; at < bytes_; at += chunk_bytes_) {
      check(cu()->cuMemUnmap(address_ + at, chunk_bytes_), "cuMemUnmap");
    }
    check(cu()->cuMemAddressFree(address_, bytes_), "cuMemAddressFree");
  } else if (kind_.ends_with("pool") || kind_ == "pool-plain") {
    check(cu()->cuMemFreeAsync(address_, nullptr), "cuMemFreeAsync");
    check(cu()->cuStreamSynchronize(nullptr), "cuStreamSynchronize");
  } else if (kind_.starts_with("memfd")) {
    ::munmap(pointer(address_), bytes_);
    file_.reset();
  } else {
    throw std::runtime_error("cannot free: " + kind_);
  }
  address_ = 0;
}

void agent_memory::fill(std::uint64_t offset, std::uint64_t bytes, std::uint8_t value) const {
  if (on_host()) {
    std::memset(pointer(address_ + offset), value, bytes);
    return;
  }
  check(cu()->cuMemsetD8_v2(address_ + offset, value, bytes), "cuMemsetD8");
  check(cu()->cuStreamSynchronize(nullptr), "cuStreamSynchronize");
}

}  // namespace gpushm_tests
