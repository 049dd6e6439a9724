// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <charconv>

#include "apps/gpushm/inspect/trial/raw_memory.hpp"
#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

using driver::cuda_driver;
using clock = std::chrono::steady_clock;

constexpr const char* descriptor_object = "descriptor of memory";

cuda::CUmemAllocationProp properties_on(const driver::gpu& where) {
  cuda::CUmemAllocationProp prop{};
  prop.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, where.handle};
  return prop;
}

/// An allocation that is mapped for one GPU.
class mapped_memory : public raw_memory {
 public:
  explicit mapped_memory(const driver::gpu& where) : raw_memory(where, descriptor_object) {}

 protected:
  void map(const driver::gpu& where, driver::unique_allocation allocation, std::uint64_t size) {
    const cuda_driver& cu = cuda_driver::instance();
    allocation_ = std::move(allocation);
    check(cu->cuMemAddressReserve(&address_, size, 0, 0, 0), "map", "cuMemAddressReserve");
    reservation_ = driver::unique_reservation({address_, size});
    check(cu->cuMemMap(address_, size, 0, allocation_.get(), 0), "map", "cuMemMap");
    mapping_ = driver::unique_device_mapping({address_, size});
    cuda::CUmemAccessDesc rights{};
    rights.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, where.handle};
    rights.flags = cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    check(cu->cuMemSetAccess(address_, size, &rights, 1), "map", "cuMemSetAccess");
  }

 private:
  driver::unique_allocation allocation_;
  driver::unique_reservation reservation_;
  driver::unique_device_mapping mapping_;
};

class descriptor_export final : public mapped_memory {
 public:
  descriptor_export(const driver::gpu& where, std::uint64_t size_bytes) : mapped_memory(where) {
    const cuda_driver& cu = cuda_driver::instance();
    const cuda::CUmemAllocationProp prop = properties_on(where);
    std::size_t granularity = 0;
    check(cu->cuMemGetAllocationGranularity(
              &granularity, &prop, cuda::CU_MEM_ALLOC_GRANULARITY_MINIMUM),
          "allocate",
          "cuMemGetAllocationGranularity");
    const std::uint64_t size = (size_bytes + granularity - 1) / granularity * granularity;
    cuda::CUmemGenericAllocationHandle memory = 0;
    check(cu->cuMemCreate(&memory, size, &prop, 0), "allocate", "cuMemCreate");
    driver::unique_allocation allocation(memory);
    int fd = -1;
    check(cu->cuMemExportToShareableHandle(
              &fd, memory, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          "export",
          "cuMemExportToShareableHandle");
    descriptor_ = base::unique_fd(fd);
    map(where, std::move(allocation), size);
    handle_ = fmt::format("{} {} {}", ::getpid(), fd, size);
  }
  [[nodiscard]] std::string handle() const override { return handle_; }

 private:
  base::unique_fd descriptor_;
  std::string handle_;
};

/// The PID, number and size in the text of a handle.
std::array<std::uint64_t, 3> numbers_of(const std::string& text) {
  std::array<std::uint64_t, 3> numbers{};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (std::uint64_t& number : numbers) {
    const auto parsed = std::from_chars(at, end, number);
    if (parsed.ec != std::errc()) {
      throw error(
          errc::protocol_error, "open", descriptor_object, "it is not three numbers: " + text);
    }
    at = parsed.ptr + (parsed.ptr == end ? 0 : 1);
  }
  return numbers;
}

/// As PyTorch and UCX do it: by syscall(2), without a wrapper of the C library.
base::unique_fd fetch(std::uint64_t pid, std::uint64_t number) {
  const base::unique_fd process(
      static_cast<int>(base::checked("open", descriptor_object, "pidfd_open", [&] {
        return ::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0U);
      })));
  return base::unique_fd(
      static_cast<int>(base::checked("open", descriptor_object, "pidfd_getfd", [&] {
        return ::syscall(SYS_pidfd_getfd, process.get(), static_cast<int>(number), 0U);
      })));
}

class descriptor_import final : public mapped_memory {
 public:
  descriptor_import(const driver::gpu& where,
                    const std::string& handle,
                    std::chrono::nanoseconds& time)
      : mapped_memory(where) {
    const auto [pid, number, size] = numbers_of(handle);
    const auto start = clock::now();
    const base::unique_fd descriptor = fetch(pid, number);
    cuda::CUmemGenericAllocationHandle memory = 0;
    void* const shareable =
        reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): CUDA's type of descriptors
            static_cast<std::intptr_t>(descriptor.get()));
    check(cuda_driver::instance()->cuMemImportFromShareableHandle(
              &memory, shareable, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          "open",
          "cuMemImportFromShareableHandle");
    map(where, driver::unique_allocation(memory), size);
    time = clock::now() - start;
  }
};

}  // namespace

std::unique_ptr<trial_memory> export_descriptor(const memory_request& request) {
  return std::make_unique<descriptor_export>(driver::find_device(request.device),
                                             request.size_bytes);
}

std::unique_ptr<trial_memory> import_descriptor(const memory_request& request,
                                                std::chrono::nanoseconds& open_time) {
  return std::make_unique<descriptor_import>(importing_gpu(request), request.handle, open_time);
}

}  // namespace gpushm::cli
