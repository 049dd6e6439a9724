// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/trial/raw_memory.hpp"

#include <algorithm>

#include "apps/gpushm/inspect/stopwatch.hpp"
#include "apps/gpushm/segment/device_memory.hpp"
#include "base/text/hex.hpp"
#include "gpu/driver/primary_context.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

using driver::cuda_driver;
using clock = std::chrono::steady_clock;

constexpr const char* legacy_object = "legacy handle";

class legacy_export final : public raw_memory {
 public:
  legacy_export(const driver::gpu& where, std::uint64_t size_bytes)
      : raw_memory(where, legacy_object), memory_(where, size_bytes, legacy_object) {
    address_ = reinterpret_cast<std::uintptr_t>(memory_.data());
    cuda::CUipcMemHandle handle{};
    check(cuda_driver::instance()->cuIpcGetMemHandle(&handle, address_),
          "export",
          "cuIpcGetMemHandle");
    handle_ = base::hex_text(handle.reserved);
  }
  [[nodiscard]] std::string handle() const override { return handle_; }

 private:
  device_memory memory_;
  std::string handle_;
};

class legacy_import final : public raw_memory {
 public:
  legacy_import(const driver::gpu& where, const std::string& text, std::chrono::nanoseconds& time)
      : raw_memory(where, legacy_object) {
    cuda::CUipcMemHandle handle{};
    bytes_of(text, handle.reserved);
    const auto start = clock::now();
    const cuda::CUresult result = cuda_driver::instance()->cuIpcOpenMemHandle_v2(
        &address_, handle, cuda::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    time = clock::now() - start;
    check(result, "open", "cuIpcOpenMemHandle");
  }
  legacy_import(const legacy_import&) = delete;
  legacy_import& operator=(const legacy_import&) = delete;
  ~legacy_import() override {
    driver::close_quietly("cuIpcCloseMemHandle",
                          [&](const cuda_driver& cu) { return cu->cuIpcCloseMemHandle(address_); });
  }
};

}  // namespace

raw_memory::raw_memory(const driver::gpu& where, const char* object)
    : context_(driver::primary_context(where.handle, "use", where.id.uuid)),
      scope_(context_, "use", where.id.uuid),
      object_(object),
      uuid_(where.id.uuid) {}

void raw_memory::write(std::span<const std::byte> source) {
  check(cuda_driver::instance()->cuMemcpyHtoD_v2(address_, source.data(), source.size()),
        "write",
        "cuMemcpyHtoD");
}

void raw_memory::read(std::span<std::byte> destination) const {
  check(cuda_driver::instance()->cuMemcpyDtoH_v2(destination.data(), address_, destination.size()),
        "read",
        "cuMemcpyDtoH");
}

std::optional<bool> raw_memory::rdma() const {
  return rdma_of(address_);
}

std::optional<double> raw_memory::copy_rate(std::uint64_t size_bytes) const {
  return measure_copies(driver::find_device(uuid_), address_, size_bytes);
}

void raw_memory::check(cuda::CUresult result,
                       std::string_view operation,
                       std::string_view call) const {
  cuda_driver::check(result, operation, object_, call);
}

void bytes_of(std::string_view text, std::span<char> bytes) {
  if (text.size() != 2 * bytes.size() ||
      text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw error(
        errc::protocol_error, "open", "handle", "it is not hexadecimal, or has another size");
  }
  const auto digit = [&](std::size_t index) {
    return text[index] <= '9' ? text[index] - '0' : text[index] - 'a' + 10;
  };
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(digit(2 * i) * 16 + digit(2 * i + 1));
  }
}

std::optional<double> measure_copies(const driver::gpu& where,
                                     cuda::CUdeviceptr source,
                                     std::uint64_t size_bytes) {
  constexpr int copies = 10;
  const device_memory target(where, size_bytes, where.id.uuid);
  const auto target_address = reinterpret_cast<std::uintptr_t>(target.data());
  stopwatch watch("measure");
  static_cast<void>(watch.seconds_of(target_address, source, size_bytes, 1));
  double best = watch.seconds_of(target_address, source, size_bytes, copies);
  for (int i = 0; i < 2; ++i) {
    best = std::min(best, watch.seconds_of(target_address, source, size_bytes, copies));
  }
  if (best <= 0) {
    return std::nullopt;
  }
  return static_cast<double>(size_bytes) * copies / best;
}

const driver::gpu& importing_gpu(const memory_request& request) {
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

std::unique_ptr<trial_memory> export_handle(const memory_request& request) {
  return std::make_unique<legacy_export>(driver::find_device(request.device), request.size_bytes);
}

std::unique_ptr<trial_memory> import_handle(const memory_request& request,
                                            std::chrono::nanoseconds& open_time) {
  return std::make_unique<legacy_import>(importing_gpu(request), request.handle, open_time);
}

}  // namespace gpushm::cli
