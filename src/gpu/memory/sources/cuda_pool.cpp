// SPDX-License-Identifier: Apache-2.0
// Memory pools: each pool once per process, and each of its allocations once.
#include <cstring>
#include <tuple>
#include <utility>

#include "gpu/driver/cuda.hpp"
#include "gpu/driver/owners.hpp"
#include "gpu/driver/primary_context.hpp"
#include "gpu/memory/backends/device_bytes.hpp"
#include "gpu/memory/sources/remote_kinds.hpp"
#include "gpu/memory/sources/shared_table.hpp"
#include "gpushm/error.hpp"

namespace gpushm::memory {

namespace {

using driver::cuda_driver;

/// Identifies a pool of an exporter.
struct pool_key {
  std::array<std::uint8_t, 16> exporter{};
  std::uint64_t pool = 0;
  friend bool operator<(const pool_key& a, const pool_key& b) {
    return std::tie(a.exporter, a.pool) < std::tie(b.exporter, b.pool);
  }
};

struct pointer_key {
  pool_key pool;
  std::array<std::byte, 64> handle{};
  friend bool operator<(const pointer_key& a, const pointer_key& b) {
    return std::tie(a.pool, a.handle) < std::tie(b.pool, b.handle);
  }
};

class imported_pool {
 public:
  imported_pool(std::string_view name, const base::guarded_fd& descriptor) {
    // The driver takes the descriptor's number in place of a pointer.
    auto* const number = reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): see above
        static_cast<std::intptr_t>(descriptor.get()));
    cuda_driver::check(cuda_driver::instance()->cuMemPoolImportFromShareableHandle(
                           &handle_, number, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                       "open",
                       name,
                       "cuMemPoolImportFromShareableHandle");
  }
  imported_pool(const imported_pool&) = delete;
  imported_pool& operator=(const imported_pool&) = delete;
  ~imported_pool() {
    driver::close_quietly("cuMemPoolDestroy",
                          [this](const cuda_driver& cu) { return cu->cuMemPoolDestroy(handle_); });
  }

  [[nodiscard]] cuda::CUmemoryPool handle() const noexcept { return handle_; }

 private:
  cuda::CUmemoryPool handle_ = nullptr;
};

class imported_pointer {
 public:
  imported_pointer(std::string_view name,
                   const remote_memory& memory,
                   std::shared_ptr<const imported_pool> pool,
                   cuda::CUdevice device)
      : from_(std::move(pool)), device_(device) {
    cuda::CUmemPoolPtrExportData data{};
    static_assert(sizeof data == sizeof memory.handle);
    std::memcpy(&data, memory.handle.data(), sizeof data);
    cuda_driver::check(
        cuda_driver::instance()->cuMemPoolImportPointer(&pointer_, from_->handle(), &data),
        "open",
        name,
        "cuMemPoolImportPointer");
  }
  imported_pointer(const imported_pointer&) = delete;
  imported_pointer& operator=(const imported_pointer&) = delete;
  /// Runs on any thread, which may have no context. The pointer belongs to the pool and not to a
  /// context: it is freed even if the device has been reset since.
  ~imported_pointer() {
    driver::close_quietly("cuMemFree", [this](const cuda_driver& cu) {
      cuda::CUcontext context = nullptr;
      cuda::CUresult result = cu->cuDevicePrimaryCtxRetain(&context, device_);
      if (result != cuda::CUDA_SUCCESS) {
        return result;
      }
      result = cu->cuCtxPushCurrent_v2(context);
      if (result == cuda::CUDA_SUCCESS) {
        result = cu->cuMemFree_v2(pointer_);
        cu->cuCtxPopCurrent_v2(&context);
      }
      cu->cuDevicePrimaryCtxRelease_v2(device_);
      return result;
    });
  }

  [[nodiscard]] cuda::CUdeviceptr pointer() const noexcept { return pointer_; }
  [[nodiscard]] cuda::CUmemoryPool pool() const noexcept { return from_->handle(); }

 private:
  std::shared_ptr<const imported_pool> from_;  // destroyed after its pointers
  cuda::CUdevice device_;
  cuda::CUdeviceptr pointer_ = 0;
};

using pool_table = shared_table<pool_key, imported_pool>;
using pointer_table = shared_table<pointer_key, imported_pointer>;

// NOLINTBEGIN(cppcoreguidelines-owning-memory): never destroyed, like the driver
pool_table& pools() {
  static auto* const instance = new pool_table;
  return *instance;
}
pointer_table& pointers() {
  static auto* const instance = new pointer_table;
  return *instance;
}
// NOLINTEND(cppcoreguidelines-owning-memory)

}  // namespace

std::shared_ptr<region> import_from_pool(std::string_view name,
                                         const remote_memory& memory,
                                         base::guarded_fd pool,
                                         const driver::gpu& user) {
  const driver::context_scope scope(
      driver::primary_context(user.handle, "open", name), "open", name);
  const pool_key key{memory.exporter.epoch, memory.pool};
  const auto imported = pointers().find_or_make({key, memory.handle}, [&] {
    return std::make_unique<imported_pointer>(
        name,
        memory,
        pools().find_or_make(key, [&] { return std::make_unique<imported_pool>(name, pool); }),
        user.handle);
  });
  cuda::CUmemAccessDesc allowed{};
  allowed.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, user.handle};
  allowed.flags = cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;  // pools have no read-only access
  cuda_driver::check(cuda_driver::instance()->cuMemPoolSetAccess(imported->pool(), &allowed, 1),
                     "open",
                     name,
                     "cuMemPoolSetAccess");
  // Other devices can access it only from here on.
  check_range(name, memory, mapped_bytes_from(name, imported->pointer()));
  return std::make_shared<device_region<region, std::shared_ptr<const imported_pointer>>>(
      imported,
      device_bytes(std::string(name), user.handle, imported->pointer() + memory.offset_bytes),
      memory.size_bytes);
}

}  // namespace gpushm::memory
