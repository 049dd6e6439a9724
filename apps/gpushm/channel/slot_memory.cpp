// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/channel/slot_memory.hpp"

#include <utility>

#include "gpu/memory/backends/device_bytes.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

memory::device_bytes bytes_of(const std::string& name, cuda::CUdevice gpu, const void* slot) {
  return {name, gpu, reinterpret_cast<std::uintptr_t>(slot)};
}

}  // namespace

slot_memory::slot_memory(std::string name, const device_id& memory, const std::string& device)
    : name_(std::move(name)) {
  if (memory.kind == device_kind::host) {
    return;
  }
  const driver::gpu* const gpu = device.empty() || device == "auto" ? driver::find_visible(memory)
                                                                    : &driver::find_device(device);
  if (gpu == nullptr) {
    throw error(errc::device_not_visible,
                "copy",
                name_,
                "CUDA does not show this process the GPU of the memory, " + memory.text(),
                "give the GPU to this process, or pass --device");
  }
  gpu_ = gpu->handle;
}

std::span<std::byte> slot_memory::begin(void* slot, std::uint64_t bytes) {
  if (!gpu_) {
    return {static_cast<std::byte*>(slot), static_cast<std::size_t>(bytes)};
  }
  copy_.resize(static_cast<std::size_t>(bytes));
  return copy_;
}

void slot_memory::finish(void* slot, std::uint64_t bytes) {
  if (gpu_) {
    bytes_of(name_, *gpu_, slot)
        .write(0, std::span(std::as_const(copy_)).first(static_cast<std::size_t>(bytes)));
  }
}

std::span<const std::byte> slot_memory::read(const void* slot, std::uint64_t bytes) {
  if (!gpu_) {
    return {static_cast<const std::byte*>(slot), static_cast<std::size_t>(bytes)};
  }
  copy_.resize(static_cast<std::size_t>(bytes));
  bytes_of(name_, *gpu_, slot).read(0, copy_);
  return copy_;
}

}  // namespace gpushm::cli
