// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "gpu/driver/cuda_abi.hpp"
#include "gpu/memory/backends/backend.hpp"

namespace gpushm::memory {

/// Copies between host memory and addresses of a GPU, of any kind of memory, on the GPU's
/// `private_stream`. Owns nothing.
///
/// Thread-safety: distinct objects: safe; shared objects: safe (immutable).
class device_bytes {
 public:
  device_bytes(std::string name, cuda::CUdevice device, cuda::CUdeviceptr first)
      : name_(std::move(name)), device_(device), first_(first) {}

  // As in `region`: the caller has checked offsets and sizes; each function blocks until it is
  // done.
  void read(std::uint64_t offset_bytes, std::span<std::byte> destination) const;
  void write(std::uint64_t offset_bytes, std::span<const std::byte> source) const;
  void fill(std::uint64_t offset_bytes, std::uint64_t size_bytes, std::byte value) const;

  [[nodiscard]] void* data() const noexcept {
    return reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): a CUDA pointer
        static_cast<std::uintptr_t>(first_));
  }

 private:
  std::string name_;
  cuda::CUdevice device_;
  cuda::CUdeviceptr first_;
};

/// Memory of a GPU, of any allocator.
struct gpu_source {
  const void* first = nullptr;
  cuda::CUdevice device = 0;
  int ordinal = -1;
};
/// Throws `error`: invalid_argument (it is not a GPU's memory), driver_unavailable.
[[nodiscard]] gpu_source find_gpu_source(const void* first, const std::string& name);
/// Copies from it to host memory, or to addresses that its GPU can use; on the `private_stream` of
/// its GPU. Blocks until done. Throws `error`: driver_error, forked.
void copy_to_host(const gpu_source& source,
                  std::uint64_t offset_bytes,
                  std::span<std::byte> target,
                  const std::string& name);
void copy_on_gpu(const gpu_source& source,
                 void* target,
                 std::uint64_t size_bytes,
                 const std::string& name);

/// A region over such addresses. `Base` is `region` or `allocation`; `Owner` owns the memory; if it
/// points to an `address_range`, the region can be suspended.
template <typename Base, typename Owner>
class device_region : public Base {
 public:
  device_region(Owner owner, device_bytes bytes, std::uint64_t mapped_bytes)
      : owner_(std::move(owner)), bytes_(std::move(bytes)), mapped_bytes_(mapped_bytes) {}

  [[nodiscard]] void* data() const noexcept override { return bytes_.data(); }
  [[nodiscard]] std::uint64_t mapped_bytes() const noexcept override { return mapped_bytes_; }
  void read(std::uint64_t offset_bytes, std::span<std::byte> destination) const override {
    bytes_.read(offset_bytes, destination);
  }
  void write(std::uint64_t offset_bytes, std::span<const std::byte> source) override {
    bytes_.write(offset_bytes, source);
  }
  void fill(std::uint64_t offset_bytes, std::uint64_t size_bytes, std::byte value) override {
    bytes_.fill(offset_bytes, size_bytes, value);
  }

 protected:
  [[nodiscard]] const Owner& owner() const noexcept { return owner_; }

 private:
  [[nodiscard]] address_range* range() noexcept override {
    if constexpr (requires(Owner & owner) { static_cast<address_range*>(owner.get()); }) {
      return owner_.get();
    } else {
      return nullptr;
    }
  }

  Owner owner_;
  device_bytes bytes_;
  std::uint64_t mapped_bytes_;
};

}  // namespace gpushm::memory
