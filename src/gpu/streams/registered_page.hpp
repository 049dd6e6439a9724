// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "gpu/driver/cuda_abi.hpp"
#include "sync/timeline_page.hpp"

namespace gpushm::streams {

/// Host memory, as streams of this process use it: registered with CUDA on the first use (measured:
/// 100 µs for a page of words), once for all GPUs and contexts. Not owning the memory.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class registered_page {
 public:
  /// `first`: at a page boundary, mapped as long as this exists. `bytes`: a page of words, or more.
  registered_page(void* first,
                  bool writable,
                  std::size_t bytes = sizeof(sync::timeline_page::words)) noexcept
      : first_(first), bytes_(bytes), writable_(writable) {}
  registered_page(const registered_page&) = delete;
  registered_page& operator=(const registered_page&) = delete;
  /// Precondition: no stream still uses it.
  ~registered_page();

  /// The address of a word for `stream`. Registers the page if this is the first use, or the first
  /// one after the device was reset. Throws driver_unavailable, forked, driver_error.
  [[nodiscard]] cuda::CUdeviceptr address_for(cuda::CUstream stream,
                                              std::uint32_t timeline,
                                              std::string_view operation,
                                              std::string_view object);

  [[nodiscard]] bool is_registered() const noexcept;

 private:
  void register_once(cuda::CUstream stream, std::string_view operation, std::string_view object);

  void* const first_;
  const std::size_t bytes_;
  const bool writable_;
  std::mutex mutex_;
  std::atomic<cuda::CUdeviceptr> address_{0};
  /// In which it is registered.
  std::atomic<cuda::CUcontext> context_{nullptr};
  std::atomic<std::uint64_t> life_{0};
};

}  // namespace gpushm::streams
