// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "gpu/memory/backends/backend.hpp"

namespace gpushm::memory {

/// A region over host memory, like `device_region` for GPUs. `Base` is `region` or `allocation`;
/// `Owner` owns the memory; if it is an `address_range`, the region can be suspended.
template <typename Base, typename Owner>
class host_region : public Base {
 public:
  host_region(Owner owner, std::byte* first, std::uint64_t mapped_bytes)
      : owner_(std::move(owner)), first_(first), mapped_bytes_(mapped_bytes) {}

  [[nodiscard]] void* data() const noexcept override { return first_; }
  [[nodiscard]] std::uint64_t mapped_bytes() const noexcept override { return mapped_bytes_; }
  void read(std::uint64_t offset_bytes, std::span<std::byte> destination) const override {
    if (destination.empty()) {
      return;  // its address may be null
    }
    std::memcpy(destination.data(), first_ + offset_bytes, destination.size());
  }
  void write(std::uint64_t offset_bytes, std::span<const std::byte> source) override {
    if (source.empty()) {
      return;
    }
    std::memcpy(first_ + offset_bytes, source.data(), source.size());
  }
  void fill(std::uint64_t offset_bytes, std::uint64_t size_bytes, std::byte value) override {
    std::memset(first_ + offset_bytes, std::to_integer<int>(value), size_bytes);
  }

 private:
  [[nodiscard]] address_range* range() noexcept override {
    if constexpr (std::is_base_of_v<address_range, Owner>) {
      return &owner_;
    } else {
      return nullptr;
    }
  }

  Owner owner_;
  std::byte* first_;
  std::uint64_t mapped_bytes_;
};

}  // namespace gpushm::memory
