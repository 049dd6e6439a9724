// SPDX-License-Identifier: Apache-2.0
// Legacy handles: cuIpcOpenMemHandle, once a process, device and allocation.
#include <unistd.h>

#include <cstring>
#include <tuple>

#include "driver/cuda.hpp"
#include "driver/owners.hpp"
#include "driver/primary_context.hpp"
#include "gpushm/error.hpp"
#include "memory/device_bytes.hpp"
#include "memory/remote_kinds.hpp"
#include "memory/shared_table.hpp"

namespace gpushm::memory {

namespace {

using driver::cuda_driver;

/// Which allocation of which exporter, for which device, in which life of that device's context.
struct handle_key {
  std::array<std::uint8_t, 16> exporter{};
  std::uint64_t buffer_id = 0;
  std::array<std::byte, 64> handle{};
  cuda::CUdevice device = cuda::device_invalid;
  std::uint64_t context_life = 0;
  friend bool operator<(const handle_key& a, const handle_key& b) {
    return std::tie(a.exporter, a.buffer_id, a.handle, a.device, a.context_life) <
           std::tie(b.exporter, b.buffer_id, b.handle, b.device, b.context_life);
  }

  [[nodiscard]] bool is_same_memory(const handle_key& other) const noexcept {
    return exporter == other.exporter && buffer_id == other.buffer_id && handle == other.handle;
  }
};

class opened_handle {
 public:
  opened_handle(cuda::CUcontext context, std::uint64_t life, cuda::CUdeviceptr base) noexcept
      : context_(context), life_(life), base_(base) {}
  void set_size(std::uint64_t size_bytes) noexcept { size_bytes_ = size_bytes; }
  opened_handle(const opened_handle&) = delete;
  opened_handle& operator=(const opened_handle&) = delete;
  ~opened_handle() {
    if (!usable()) {
      return;  // it ended with its context, and the address may be somebody else's by now
    }
    driver::close_quietly("cuIpcCloseMemHandle", [this](const cuda_driver& cu) {
      cuda::CUcontext before = nullptr;
      cuda::CUresult result = cu->cuCtxPushCurrent_v2(context_);
      if (result == cuda::CUDA_SUCCESS) {
        result = cu->cuIpcCloseMemHandle(base_);
        cu->cuCtxPopCurrent_v2(&before);
      }
      return result;
    });
  }

  [[nodiscard]] cuda::CUdeviceptr base() const noexcept { return base_; }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  [[nodiscard]] bool usable() const noexcept { return driver::context_life(context_) == life_; }

 private:
  cuda::CUcontext context_;
  std::uint64_t life_;
  cuda::CUdeviceptr base_;
  std::uint64_t size_bytes_ = 0;
};

using handle_table = shared_table<handle_key, opened_handle>;

handle_table& table() {
  static auto* const made = new handle_table;  // NOLINT(cppcoreguidelines-owning-memory): for ever
  return *made;
}

class legacy_region final : public device_region<region, std::shared_ptr<const opened_handle>> {
 public:
  using device_region::device_region;
  [[nodiscard]] bool usable() const noexcept override { return owner()->usable(); }
};

cuda::CUdeviceptr open_in_driver(std::string_view name, const remote_memory& memory) {
  const auto bytes = usable_handle(name, memory, ::getpid());
  cuda::CUipcMemHandle handle{};
  static_assert(sizeof handle == sizeof bytes);
  std::memcpy(&handle, bytes.data(), sizeof handle);
  cuda::CUdeviceptr base = 0;
  const cuda::CUresult result = cuda_driver::instance()->cuIpcOpenMemHandle_v2(
      &base, handle, cuda::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (result == cuda::CUDA_ERROR_INVALID_HANDLE) {
    throw error(errc::peer_died,
                "open",
                name,
                "the driver does not know the handle any more: its exporter has died, or has freed "
                "the memory (cuIpcOpenMemHandle: " +
                    driver::result_text(result) + ")",
                "share the memory again from a living process");
  }
  cuda_driver::check(result, "open", name, "cuIpcOpenMemHandle");
  return base;
}

/// The driver gives an address that it has given before as long as that mapping lives. If it is
/// another allocation's, this is old memory under a new name (FACTS L4: handles can repeat).
void check_not_another(const handle_table& all,
                       const handle_key& key,
                       const opened_handle& opened,
                       std::string_view name) {
  all.for_each([&](const handle_key& other, const opened_handle& value) {
    if (value.base() == opened.base() && value.usable() && !other.is_same_memory(key)) {
      throw error(errc::stale,
                  "open",
                  name,
                  "the driver still maps freed memory of the same exporter at this handle",
                  "close the segment that was shared there before, then open this one again");
    }
  });
}

}  // namespace

std::shared_ptr<region> open_legacy_handle(std::string_view name,
                                           const remote_memory& memory,
                                           const driver::gpu& user) {
  const cuda::CUcontext context = driver::primary_context(user.handle, "open", name);
  const driver::context_scope scope(context, "open", name);
  const handle_key key{memory.exporter.epoch,
                       memory.buffer_id,
                       memory.handle,
                       user.handle,
                       driver::context_life(context)};
  const auto opened = table().find_or_make(key, [&](const handle_table& all) {
    auto made =
        std::make_unique<opened_handle>(context, key.context_life, open_in_driver(name, memory));
    check_not_another(all, key, *made, name);
    made->set_size(bytes_behind(name, made->base()));
    return made;
  });
  check_range(name, memory, opened->size_bytes());
  return std::make_shared<legacy_region>(
      opened,
      device_bytes(std::string(name), user.handle, opened->base() + memory.offset_bytes),
      memory.size_bytes);
}

}  // namespace gpushm::memory
