// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/trial/trial_memory.hpp"

#include <optional>

#include "apps/gpushm/inspect/trial/raw_memory.hpp"
#include "apps/gpushm/segment/device_memory.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/owners.hpp"
#include "gpu/driver/primary_context.hpp"
#include "gpushm/client.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

using driver::cuda_driver;
using inspect::way;
using clock = std::chrono::steady_clock;

void* as_pointer(cuda::CUdeviceptr address) {
  return reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): CUDA's type of addresses
      static_cast<std::uintptr_t>(address));
}

cuda::CUdeviceptr as_address(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

/// Memory of an exportable pool, allocated as in a program that does not use gpushm.
class pool_memory {
 public:
  pool_memory(const driver::gpu& where, std::uint64_t size_bytes, std::string_view object)
      : context_(driver::primary_context(where.handle, "allocate", object)) {
    const cuda_driver& cu = cuda_driver::instance();
    const driver::context_scope scope(context_, "allocate", object);
    cuda::CUmemPoolProps props{};
    props.allocType = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
    props.handleTypes = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    props.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, where.handle};
    cuda_driver::check(cu->cuMemPoolCreate(&pool_, &props), "allocate", object, "cuMemPoolCreate");
    cuda::CUresult result = cu->cuMemAllocFromPoolAsync(&first_, size_bytes, pool_, nullptr);
    std::string_view call = "cuMemAllocFromPoolAsync";
    if (result == cuda::CUDA_SUCCESS) {
      call = "cuStreamSynchronize";
      result = cu->cuStreamSynchronize(nullptr);
    }
    if (result != cuda::CUDA_SUCCESS) {
      cuda_driver::note(cu->cuMemPoolDestroy(pool_), "cuMemPoolDestroy");
      cuda_driver::check(result, "allocate", object, call);
    }
  }
  pool_memory(const pool_memory&) = delete;
  pool_memory& operator=(const pool_memory&) = delete;
  ~pool_memory() {
    driver::close_quietly("cuMemFreeAsync", [&](const cuda_driver& cu) {
      cuda::CUresult result = cu->cuCtxPushCurrent_v2(context_);
      if (result == cuda::CUDA_SUCCESS) {
        result = cu->cuMemFreeAsync(first_, nullptr);
        static_cast<void>(cu->cuStreamSynchronize(nullptr));
        cuda_driver::note(cu->cuMemPoolDestroy(pool_), "cuMemPoolDestroy");
        cuda::CUcontext popped = nullptr;
        static_cast<void>(cu->cuCtxPopCurrent_v2(&popped));
      }
      return result;
    });
  }
  [[nodiscard]] void* data() const noexcept { return as_pointer(first_); }

 private:
  cuda::CUcontext context_;
  cuda::CUmemoryPool pool_ = nullptr;
  cuda::CUdeviceptr first_ = 0;
};

client connect_to(const std::string& socket) {
  connect_options options;
  options.socket_path = socket;
  return client::connect(options);
}

/// A segment on either side.
class segment_memory : public trial_memory {
 public:
  explicit segment_memory(const std::string& socket) : client_(connect_to(socket)) {}

  void write(std::span<const std::byte> source) override { segment_.write(0, source); }
  void read(std::span<std::byte> destination) const override { segment_.read(0, destination); }
  [[nodiscard]] std::string device() const override { return segment_.device().text(); }
  [[nodiscard]] std::optional<bool> rdma() const override {
    return segment_.backend() == backend::host ? std::nullopt
                                               : rdma_of(as_address(segment_.data()));
  }
  [[nodiscard]] std::optional<double> copy_rate(std::uint64_t size_bytes) const override {
    if (segment_.backend() == backend::host) {
      return std::nullopt;
    }
    const driver::gpu& where = driver::find_device(user_.empty() ? device() : user_);
    const driver::context_scope scope(
        driver::primary_context(where.handle, "measure", where.id.uuid), "measure", where.id.uuid);
    return measure_copies(where, as_address(segment_.data()), size_bytes);
  }

 protected:
  client client_;
  segment segment_;
  std::string user_;  ///< the GPU that uses it; empty: the memory's
};

class created_memory final : public segment_memory {
 public:
  explicit created_memory(const memory_request& request) : segment_memory(request.socket) {
    create_options options;
    options.size_bytes = request.size_bytes;
    options.device = request.how == way::host ? "host" : request.device;
    segment_ = client_.create(request.name, options);
    segment_.publish();
  }
};

/// Shares memory that was allocated without gpushm by `Memory`.
template <typename Memory>
class shared_memory final : public segment_memory {
 public:
  explicit shared_memory(const memory_request& request)
      : segment_memory(request.socket),
        memory_(driver::find_device(request.device), request.size_bytes, request.name),
        name_(request.name) {
    segment_ = client_.share(name_, memory_.data(), request.size_bytes);
  }
  shared_memory(const shared_memory&) = delete;
  shared_memory& operator=(const shared_memory&) = delete;
  ~shared_memory() override {
    try {
      segment_.unshare();  // no new importer can get the memory freed below
    } catch (const error&) {
      // The broker is gone, so no new importer can get it.
    }
    segment_.reset();
  }

 private:
  Memory memory_;
  std::string name_;
};

class opened_memory final : public segment_memory {
 public:
  opened_memory(const memory_request& request, std::chrono::nanoseconds& time)
      : segment_memory(request.socket) {
    open_options options;
    options.access = access::read_write;
    options.device = request.device;
    options.expected_size_bytes = request.size_bytes;
    if (request.how != way::host) {
      make_context(request);
    }
    const auto start = clock::now();
    segment_ = client_.open(request.name, options);
    time = clock::now() - start;
    user_ = request.device;
  }

 private:
  /// Programs that open memory usually have a context already. The open reports any error.
  static void make_context(const memory_request& request) {
    try {
      const driver::gpu& where =
          driver::find_device(request.device.empty() ? request.memory_device : request.device);
      static_cast<void>(driver::primary_context(where.handle, "use", where.id.uuid));
    } catch (const error&) {
      return;
    }
  }
};

}  // namespace

std::optional<bool> rdma_of(cuda::CUdeviceptr address) {
  std::uint64_t capable = 0;  // the driver writes one byte or more
  if (cuda_driver::instance()->cuPointerGetAttribute(
          &capable, cuda::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, address) !=
      cuda::CUDA_SUCCESS) {
    return std::nullopt;
  }
  return capable != 0;
}

std::unique_ptr<trial_memory> export_memory_for(const memory_request& request) {
  switch (request.how) {
    case way::raw_legacy:
    case way::unmodified:
      return export_handle(request);
    case way::unmodified_event:
      return export_with_event(request);
    case way::unmodified_descriptor:
      return export_descriptor(request);
    case way::legacy:
      return std::make_unique<shared_memory<device_memory>>(request);
    case way::pool:
      return std::make_unique<shared_memory<pool_memory>>(request);
    case way::vmm:
    case way::host:
      break;
  }
  return std::make_unique<created_memory>(request);
}

std::unique_ptr<trial_memory> import_memory_of(const memory_request& request,
                                               std::chrono::nanoseconds& open_time) {
  switch (request.how) {
    case way::raw_legacy:
    case way::unmodified:
      return import_handle(request, open_time);
    case way::unmodified_event:
      return import_with_event(request, open_time);
    case way::unmodified_descriptor:
      return import_descriptor(request, open_time);
    case way::legacy:
    case way::vmm:
    case way::pool:
    case way::host:
      break;
  }
  return std::make_unique<opened_memory>(request, open_time);
}

}  // namespace gpushm::cli
