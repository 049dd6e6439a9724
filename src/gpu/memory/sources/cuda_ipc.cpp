// SPDX-License-Identifier: Apache-2.0
// Legacy handles: cuIpcOpenMemHandle, once per process, device and allocation.
#include <unistd.h>

#include <cstring>
#include <optional>
#include <tuple>

#include "gpu/driver/cuda.hpp"
#include "gpu/driver/owners.hpp"
#include "gpu/driver/primary_context.hpp"
#include "gpu/memory/backends/device_bytes.hpp"
#include "gpu/memory/sources/opened_addresses.hpp"
#include "gpu/memory/sources/remote_kinds.hpp"
#include "gpu/memory/sources/shared_table.hpp"
#include "gpushm/error.hpp"

namespace gpushm::memory {

namespace {

using driver::cuda_driver;

/// Identifies an exporter's allocation, the device it is opened for, and that device's context.
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
};

/// Identifies memory, regardless of the device it is mapped for.
struct exported_memory {
  std::array<std::uint8_t, 16> exporter{};
  std::uint64_t buffer_id = 0;
  std::array<std::byte, 64> handle{};
  cuda::CUcontext context = nullptr;  ///< the context that it was opened in, and that context's id
  std::uint64_t context_life = 0;
  friend bool operator==(const exported_memory& a, const exported_memory& b) noexcept {
    return a.exporter == b.exporter && a.buffer_id == b.buffer_id && a.handle == b.handle;
  }
  [[nodiscard]] bool usable() const noexcept {
    return driver::context_life(context) == context_life;
  }
};

using address_table = opened_addresses<exported_memory>;

address_table& addresses() {
  static auto* const all = new address_table;  // NOLINT(cppcoreguidelines-owning-memory): leaked
  return *all;
}

class opened_handle {
 public:
  /// Owns what the driver opened at `base`.
  opened_handle(const exported_memory& memory, cuda::CUdeviceptr base) noexcept
      : context_(memory.context), life_(memory.context_life), base_(base) {}
  void set_place(address_table::place place) noexcept { place_ = place; }
  void set_size(std::uint64_t size_bytes) noexcept { size_bytes_ = size_bytes; }
  opened_handle(const opened_handle&) = delete;
  opened_handle& operator=(const opened_handle&) = delete;
  ~opened_handle() {
    if (place_) {
      addresses().closing(*place_);
    }
    if (usable()) {  // otherwise the context destroyed it, and the address may be reused by now
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
    if (place_) {
      addresses().closed(*place_);
    }
  }

  [[nodiscard]] cuda::CUdeviceptr base() const noexcept { return base_; }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  [[nodiscard]] bool usable() const noexcept { return driver::context_life(context_) == life_; }

 private:
  cuda::CUcontext context_;
  std::uint64_t life_;
  cuda::CUdeviceptr base_;
  std::optional<address_table::place> place_;  // nothing: not in the list of addresses
  std::uint64_t size_bytes_ = 0;
};

using handle_table = shared_table<handle_key, opened_handle>;

handle_table& table() {
  static auto* const all = new handle_table;  // NOLINT(cppcoreguidelines-owning-memory): leaked
  return *all;
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
                "the handle is no longer valid: its exporter has exited or freed the memory "
                "(cuIpcOpenMemHandle: " +
                    driver::result_text(result) + ")",
                "share the memory again from a running process",
                {.pid = memory.exporter.pid});
  }
  cuda_driver::check(result, "open", name, "cuIpcOpenMemHandle");
  return base;
}

/// Opens the handle, again until it is certain that the driver has mapped that memory and no other.
std::unique_ptr<opened_handle> open_checked(std::string_view name,
                                            const remote_memory& memory,
                                            const exported_memory& exported_memory) {
  for (;;) {
    const address_table::opening opening(addresses());
    auto opened = std::make_unique<opened_handle>(exported_memory, open_in_driver(name, memory));
    address_table::place place;
    const auto verdict = addresses().enter(
        opening,
        exported_memory,
        opened->base(),
        [](const address_table::entry& each) { return each.memory.usable(); },
        place);
    if (verdict == address_table::verdict::entered) {
      opened->set_place(place);
      return opened;
    }
    opened.reset();
    if (verdict == address_table::verdict::another) {
      // Memory that is freed and allocated again can get the same handle.
      throw error(
          errc::gone_or_replaced,
          "open",
          name,
          "the driver still maps freed memory of the same exporter at this handle",
          "close the segment that was shared with this handle before, then open this one again");
    }
  }
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
  const auto opened = table().find_or_make(key, [&] {
    auto created = open_checked(
        name, memory, {key.exporter, key.buffer_id, key.handle, context, key.context_life});
    created->set_size(mapped_bytes_from(name, created->base()));
    return created;
  });
  check_range(name, memory, opened->size_bytes());
  return std::make_shared<legacy_region>(
      opened,
      device_bytes(std::string(name), user.handle, opened->base() + memory.offset_bytes),
      memory.size_bytes);
}

}  // namespace gpushm::memory
