// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "apps/gpushm/inspect/trial/raw_memory.hpp"
#include "apps/gpushm/segment/device_memory.hpp"
#include "base/text/hex.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

using driver::cuda_driver;
using clock = std::chrono::steady_clock;

constexpr const char* event_object = "legacy handle and event";
constexpr std::size_t handle_digits = 2 * cuda::ipc_handle_bytes;

/// Memory whose uses are enqueued on a stream and ordered by an event. The derived classes set
/// `event_`.
class ordered_memory : public raw_memory {
 public:
  explicit ordered_memory(const driver::gpu& where) : raw_memory(where, event_object) {
    check(cuda_driver::instance()->cuStreamCreate(&stream_, cuda::CU_STREAM_NON_BLOCKING),
          "use",
          "cuStreamCreate");
  }
  ordered_memory(const ordered_memory&) = delete;
  ordered_memory& operator=(const ordered_memory&) = delete;
  ~ordered_memory() override {
    driver::close_quietly("cuStreamDestroy",
                          [&](const cuda_driver& cu) { return cu->cuStreamDestroy_v2(stream_); });
    if (event_ != nullptr) {
      driver::close_quietly("cuEventDestroy",
                            [&](const cuda_driver& cu) { return cu->cuEventDestroy_v2(event_); });
    }
  }

  /// Returns before the copy is complete; the event is recorded after it.
  void write(std::span<const std::byte> source) final {
    const cuda_driver& cu = cuda_driver::instance();
    source_.assign(source.begin(), source.end());
    check(cu->cuMemcpyHtoDAsync_v2(address_, source_.data(), source_.size(), stream_),
          "write",
          "cuMemcpyHtoDAsync");
    check(cu->cuEventRecord(event_, stream_), "write", "cuEventRecord");
  }
  /// Waits, on the stream, for what the event has recorded.
  void read(std::span<std::byte> destination) const final {
    const cuda_driver& cu = cuda_driver::instance();
    check(cu->cuStreamWaitEvent(stream_, event_, 0), "read", "cuStreamWaitEvent");
    check(cu->cuMemcpyDtoHAsync_v2(destination.data(), address_, destination.size(), stream_),
          "read",
          "cuMemcpyDtoHAsync");
    check(cu->cuStreamSynchronize(stream_), "read", "cuStreamSynchronize");
  }

 protected:
  cuda::CUevent event_ = nullptr;

 private:
  cuda::CUstream stream_ = nullptr;
  std::vector<std::byte> source_;  ///< of the copy that may still run
};

class event_export final : public ordered_memory {
 public:
  event_export(const driver::gpu& where, std::uint64_t size_bytes)
      : ordered_memory(where), memory_(where, size_bytes, event_object) {
    const cuda_driver& cu = cuda_driver::instance();
    address_ = reinterpret_cast<std::uintptr_t>(memory_.data());
    cuda::CUipcMemHandle memory{};
    check(cu->cuIpcGetMemHandle(&memory, address_), "export", "cuIpcGetMemHandle");
    check(cu->cuEventCreate(&event_, cuda::CU_EVENT_INTERPROCESS | cuda::CU_EVENT_DISABLE_TIMING),
          "export",
          "cuEventCreate");
    cuda::CUipcEventHandle event{};
    check(cu->cuIpcGetEventHandle(&event, event_), "export", "cuIpcGetEventHandle");
    handle_ = base::hex_text(memory.reserved) + base::hex_text(event.reserved);
  }
  [[nodiscard]] std::string handle() const override { return handle_; }

 private:
  device_memory memory_;
  std::string handle_;
};

class event_import final : public ordered_memory {
 public:
  event_import(const driver::gpu& where, std::string_view text, std::chrono::nanoseconds& time)
      : ordered_memory(where) {
    const cuda_driver& cu = cuda_driver::instance();
    cuda::CUipcMemHandle memory{};
    cuda::CUipcEventHandle event{};
    bytes_of(text.substr(0, handle_digits), memory.reserved);
    bytes_of(text.substr(std::min(handle_digits, text.size())), event.reserved);
    const auto start = clock::now();
    check(cu->cuIpcOpenMemHandle_v2(&address_, memory, cuda::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
          "open",
          "cuIpcOpenMemHandle");
    const cuda::CUresult result = cu->cuIpcOpenEventHandle(&event_, event);
    time = clock::now() - start;
    if (result != cuda::CUDA_SUCCESS) {
      event_ = nullptr;
      close();
      check(result, "open", "cuIpcOpenEventHandle");
    }
  }
  event_import(const event_import&) = delete;
  event_import& operator=(const event_import&) = delete;
  ~event_import() override { close(); }

 private:
  void close() const noexcept {
    driver::close_quietly("cuIpcCloseMemHandle",
                          [&](const cuda_driver& cu) { return cu->cuIpcCloseMemHandle(address_); });
  }
};

}  // namespace

std::unique_ptr<trial_memory> export_with_event(const memory_request& request) {
  return std::make_unique<event_export>(driver::find_device(request.device), request.size_bytes);
}

std::unique_ptr<trial_memory> import_with_event(const memory_request& request,
                                                std::chrono::nanoseconds& open_time) {
  return std::make_unique<event_import>(importing_gpu(request), request.handle, open_time);
}

}  // namespace gpushm::cli
