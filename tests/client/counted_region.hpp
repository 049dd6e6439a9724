// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "gpu/memory/backends/backend.hpp"

namespace gpushm_tests {

/// Counts the mapped memory.
class counted_region final : public gpushm::memory::region {
 public:
  explicit counted_region(std::atomic<int>& alive, std::function<void()> on_end = {})
      : alive_(alive), on_end_(std::move(on_end)) {
    ++alive_;
  }
  counted_region(const counted_region&) = delete;
  counted_region& operator=(const counted_region&) = delete;
  ~counted_region() override {
    if (on_end_) {
      on_end_();
    }
    --alive_;
  }
  [[nodiscard]] void* data() const noexcept override { return nullptr; }
  [[nodiscard]] std::uint64_t mapped_bytes() const noexcept override { return 0; }
  void read(std::uint64_t /*offset*/, std::span<std::byte> /*target*/) const override {}
  void write(std::uint64_t /*offset*/, std::span<const std::byte> /*source*/) override {}
  void fill(std::uint64_t /*offset*/, std::uint64_t /*size*/, std::byte /*value*/) override {}

 private:
  std::atomic<int>& alive_;
  std::function<void()> on_end_;
};

}  // namespace gpushm_tests
