// SPDX-License-Identifier: Apache-2.0
#include "gpu/memory/sources/remote_memory.hpp"

#include <unistd.h>

#include <map>
#include <mutex>
#include <utility>

#include "gpu/driver/cuda.hpp"
#include "gpu/memory/backends/device_bytes.hpp"
#include "gpu/memory/backends/host_region.hpp"
#include "gpu/memory/sources/remote_kinds.hpp"
#include "gpushm/error.hpp"

namespace gpushm::memory {

namespace {

/// A number that is not a PID.
constexpr std::int32_t no_pid = 0;

struct no_owner {};  // owner of memory that is not owned

/// Address, size and buffer id of the memory that this process shares, with a count.
struct export_registry {
  std::mutex mutex;
  std::map<std::array<std::uint64_t, 3>, std::size_t> shared;
};
export_registry& registry() {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): never destroyed, exports may outlive main
  static auto* const instance = new export_registry;
  return *instance;
}
std::array<std::uint64_t, 3> registry_key(const remote_memory& memory) {
  return {memory.address, memory.size_bytes, memory.buffer_id};
}

}  // namespace

own_export::own_export(const remote_memory& memory) : key_(registry_key(memory)) {
  const std::lock_guard lock(registry().mutex);
  ++registry().shared[key_];
}

own_export::~own_export() {
  const std::lock_guard lock(registry().mutex);
  const auto at = registry().shared.find(key_);
  if (--at->second == 0) {
    registry().shared.erase(at);
  }
}

std::int32_t pid_in(const std::array<std::byte, 64>& handle, std::size_t offset) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i) {
    value |= std::to_integer<std::uint32_t>(handle.at(offset + i)) << (8 * i);
  }
  return static_cast<std::int32_t>(value);
}

std::uint64_t mapped_bytes_from(std::string_view name, cuda::CUdeviceptr address) {
  cuda::CUdeviceptr start = 0;
  std::size_t size = 0;
  driver::cuda_driver::check(
      driver::cuda_driver::instance()->cuMemGetAddressRange_v2(&start, &size, address),
      "open",
      name,
      "cuMemGetAddressRange");
  return start + size - address;
}

void check_range(std::string_view name, const remote_memory& memory, std::uint64_t mapped_bytes) {
  if (memory.offset_bytes > mapped_bytes ||
      memory.size_bytes > mapped_bytes - memory.offset_bytes) {
    throw error(errc::size_mismatch,
                "open",
                name,
                "the exporter's allocation has " + std::to_string(mapped_bytes) + " bytes, not " +
                    std::to_string(memory.size_bytes) + " at offset " +
                    std::to_string(memory.offset_bytes),
                "the exporter is broken or hostile; report it");
  }
}

std::array<std::byte, 64> usable_handle(std::string_view name,
                                        const remote_memory& memory,
                                        std::int32_t own_pid) {
  std::array<std::byte, 64> bytes = memory.handle;
  if (!memory.pid_offset || *memory.pid_offset > bytes.size() - sizeof no_pid) {
    if (memory.exporter.pid == own_pid) {
      throw error(errc::pid_collision,
                  "open",
                  name,
                  "the exporter is PID " + std::to_string(own_pid) +
                      " in its PID namespace as this process is in its own, and the layout of its "
                      "driver's legacy handles is unknown",
                  "share memory that travels as descriptors (cuMemCreate, expandable segments), or "
                  "give both one PID namespace (shareProcessNamespace)");
    }
    return bytes;
  }
  if (pid_in(bytes, *memory.pid_offset) == own_pid) {
    for (std::size_t i = 0; i < sizeof no_pid; ++i) {
      bytes.at(*memory.pid_offset + i) = std::byte{0};
    }
  }
  return bytes;
}

void check_same_machine(std::string_view name, const base::process_identity& exporter) {
  const std::string here = base::this_process().boot_id;
  if (!exporter.boot_id.empty() && exporter.boot_id != here) {
    throw error(errc::peer_unreachable,
                "open",
                name,
                "it was shared on another machine, or before this machine was rebooted (boot id " +
                    exporter.boot_id + ", here " + here + ")",
                "share and open memory on the same machine");
  }
}

std::shared_ptr<region> open_remote(std::string_view name,
                                    const remote_memory& memory,
                                    base::guarded_fd pool,
                                    const driver::gpu& user) {
  check_same_machine(name, memory.exporter);
  return memory.kind == gpushm::backend::cuda_pool
             ? import_from_pool(name, memory, std::move(pool), user)
             : open_legacy_handle(name, memory, user);
}

bool is_own(const remote_memory& memory) {
  return memory.exporter == base::this_process();
}

std::shared_ptr<region> open_own(std::string_view name, const remote_memory& memory) {
  {
    const std::lock_guard lock(registry().mutex);
    if (!registry().shared.contains(registry_key(memory))) {
      throw error(errc::gone_or_replaced,
                  "open",
                  name,
                  "this process no longer shares that memory",
                  "share it again");
    }
  }
  return own_memory(name, memory.address, memory.size_bytes, memory.device);
}

std::shared_ptr<region> own_memory(std::string_view name,
                                   std::uint64_t address,
                                   std::uint64_t size_bytes,
                                   const device_id& device) {
  if (device.kind == device_kind::host) {
    auto* const data = reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): a pointer
        static_cast<std::uintptr_t>(address));   // that travelled as a number
    return std::make_shared<host_region<region, no_owner>>(
        no_owner{}, static_cast<std::byte*>(data), size_bytes);
  }
  const driver::gpu& home = driver::find_device(device.uuid);
  return std::make_shared<device_region<region, no_owner>>(
      no_owner{}, device_bytes(std::string(name), home.handle, address), size_bytes);
}

}  // namespace gpushm::memory
