// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/trial/trial_memory.hpp"

#include <array>
#include <cstring>
#include <optional>

#include "apps/gpushm/segment/device_memory.hpp"
#include "base/hex.hpp"
#include "driver/devices.hpp"
#include "driver/owners.hpp"
#include "driver/primary_context.hpp"
#include "gpushm/client.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

using driver::cuda_driver;
using inspect::way;
using clock = std::chrono::steady_clock;

constexpr std::string_view raw_object = "legacy handle";

void* as_pointer(cuda::CUdeviceptr address) {
  return reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): CUDA's type of addresses
      static_cast<std::uintptr_t>(address));
}

cuda::CUdeviceptr as_address(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

cuda::CUipcMemHandle handle_of(const std::string& text) {
  cuda::CUipcMemHandle handle{};
  if (text.size() != 2 * cuda::ipc_handle_bytes ||
      text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw error(errc::protocol_error, "open", raw_object, "it is not 64 bytes in hexadecimal");
  }
  const auto digit = [&](std::size_t at) {
    return text[at] <= '9' ? text[at] - '0' : text[at] - 'a' + 10;
  };
  for (std::size_t i = 0; i < cuda::ipc_handle_bytes; ++i) {
    handle.reserved[i] = static_cast<char>(digit(2 * i) * 16 + digit(2 * i + 1));
  }
  return handle;
}

std::optional<bool> rdma_of(cuda::CUdeviceptr address) {
  std::uint64_t capable = 0;  // the driver writes one byte or more
  if (cuda_driver::instance()->cuPointerGetAttribute(
          &capable, cuda::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, address) !=
      cuda::CUDA_SUCCESS) {
    return std::nullopt;
  }
  return capable != 0;
}

/// Device memory without gpushm, in a context that stays current.
class raw_memory : public trial_memory {
 public:
  explicit raw_memory(const driver::gpu& where)
      : context_(driver::primary_context(where.handle, "use", where.id.uuid)),
        scope_(context_, "use", where.id.uuid),
        uuid_(where.id.uuid) {}

  void write(std::span<const std::byte> source) override {
    cuda_driver::check(
        cuda_driver::instance()->cuMemcpyHtoD_v2(address_, source.data(), source.size()),
        "write",
        raw_object,
        "cuMemcpyHtoD");
  }
  void read(std::span<std::byte> destination) const override {
    cuda_driver::check(
        cuda_driver::instance()->cuMemcpyDtoH_v2(destination.data(), address_, destination.size()),
        "read",
        raw_object,
        "cuMemcpyDtoH");
  }
  [[nodiscard]] std::string device() const override { return uuid_; }
  [[nodiscard]] std::optional<bool> rdma() const override { return rdma_of(address_); }

 protected:
  cuda::CUdeviceptr address_ = 0;  ///< set by the derived classes

 private:
  cuda::CUcontext context_;
  driver::context_scope scope_;
  std::string uuid_;
};

class raw_export final : public raw_memory {
 public:
  raw_export(const driver::gpu& where, std::uint64_t size_bytes)
      : raw_memory(where), memory_(where, size_bytes, raw_object) {
    address_ = as_address(memory_.data());
    cuda::CUipcMemHandle handle{};
    cuda_driver::check(cuda_driver::instance()->cuIpcGetMemHandle(&handle, address_),
                       "export",
                       raw_object,
                       "cuIpcGetMemHandle");
    handle_ = base::hex_text(handle.reserved);
  }
  [[nodiscard]] std::string handle() const override { return handle_; }

 private:
  device_memory memory_;
  std::string handle_;
};

class raw_import final : public raw_memory {
 public:
  raw_import(const driver::gpu& where, const std::string& handle, std::chrono::nanoseconds& time)
      : raw_memory(where) {
    const cuda::CUipcMemHandle bytes = handle_of(handle);
    const auto start = clock::now();
    const cuda::CUresult result = cuda_driver::instance()->cuIpcOpenMemHandle_v2(
        &address_, bytes, cuda::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    time = clock::now() - start;
    cuda_driver::check(result, "open", raw_object, "cuIpcOpenMemHandle");
  }
  raw_import(const raw_import&) = delete;
  raw_import& operator=(const raw_import&) = delete;
  ~raw_import() override {
    driver::close_quietly("cuIpcCloseMemHandle",
                          [&](const cuda_driver& cu) { return cu->cuIpcCloseMemHandle(address_); });
  }
};

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

 protected:
  client client_;
  segment segment_;
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

/// The GPU whose context opens a handle: the requested one, else the memory's, else any.
const driver::gpu& raw_importer(const memory_request& request) {
  if (!request.device.empty()) {
    return driver::find_device(request.device);
  }
  for (const driver::gpu& each : driver::visible_gpus()) {
    if (each.id.uuid == request.memory_device) {
      return each;
    }
  }
  return driver::find_device("0");
}

}  // namespace

std::unique_ptr<trial_memory> export_memory_for(const memory_request& request) {
  switch (request.how) {
    case way::raw_legacy:
      return std::make_unique<raw_export>(driver::find_device(request.device), request.size_bytes);
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
  if (request.how == way::raw_legacy) {
    return std::make_unique<raw_import>(raw_importer(request), request.handle, open_time);
  }
  return std::make_unique<opened_memory>(request, open_time);
}

}  // namespace gpushm::cli
