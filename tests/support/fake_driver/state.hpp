// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string_view>
#include <vector>

#include "gpu/driver/cuda_abi.hpp"
#include "tests/support/fake_driver/address_space.hpp"
#include "tests/support/fake_driver/extra_functions.hpp"
#include "tests/support/fake_driver/gpu_config.hpp"

// Declares every entry point from the common list, so that a definition with other parameters does
// not compile.
namespace gpushm::cuda {
extern "C" {
#define GPUSHM_FAKE_DECLARE(symbol, parameters) \
  __attribute__((visibility("default"))) CUresult symbol parameters;
GPUSHM_CUDA_FUNCTIONS(GPUSHM_FAKE_DECLARE)
GPUSHM_FAKE_EXTRA_FUNCTIONS(GPUSHM_FAKE_DECLARE)
#undef GPUSHM_FAKE_DECLARE
}
}  // namespace gpushm::cuda

namespace gpushm::fake {

using cuda::CUresult;

inline constexpr std::size_t granularity_bytes = 2UL << 20U;

/// A primary context; CUcontext points to it. The object is used again after a reset, as the real
/// driver returns the same CUcontext.
struct context {
  std::size_t gpu = 0;
  std::atomic<int> retained{0};
  std::atomic<bool> destroyed{false};  ///< by a reset, and not retained since
  std::uint64_t id = 0;                ///< changes each time that the context is created
};

/// State of this process; created by cuInit, never destroyed, because threads may use it at exit.
struct driver_state {
  std::mutex mutex;                                ///< guards all of it
  std::vector<gpu_view> gpus;                      ///< every section of gpus.conf
  std::vector<std::size_t> enumerated;             ///< indices into `gpus`, by CUdevice
  std::vector<std::unique_ptr<context>> contexts;  ///< by index into `gpus`
  std::vector<std::uint64_t> own_bytes;  ///< allocated by this process, by index into `gpus`
  address_space ranges;
  std::uint64_t last_context_id = 0;

  /// Index of the section with this UUID, or `gpus.size()`.
  [[nodiscard]] std::size_t index_of(std::string_view uuid) const;
  /// The CUdevice of a section; cuda::device_invalid when it is not enumerated.
  [[nodiscard]] cuda::CUdevice device_of(std::size_t gpu) const;
  /// Index of the section of a CUdevice, or `gpus.size()`.
  [[nodiscard]] std::size_t gpu_of(cuda::CUdevice device) const;
  [[nodiscard]] std::uint64_t free_bytes(std::size_t gpu) const;
  [[nodiscard]] bool peers(std::size_t a, std::size_t b) const;
};

/// Valid once cuInit has succeeded.
[[nodiscard]] driver_state& state() noexcept;
/// Implements cuInit.
[[nodiscard]] CUresult initialise();

/// The context that is current on this thread and not destroyed, or null.
[[nodiscard]] context* current_context() noexcept;
/// The result of a call that needs a context when `current_context` is null.
[[nodiscard]] CUresult why_no_context() noexcept;

namespace detail {
/// Result of a call that must not run: after fork, without cuInit, or with a requested failure;
/// otherwise CUDA_SUCCESS.
[[nodiscard]] CUresult before_call(std::string_view name, bool needs_init) noexcept;
void after_call(std::string_view name, CUresult result) noexcept;
}  // namespace detail

/// Wraps every entry point: fork and cuInit checks, GPUSHM_FAKE_FAIL, GPUSHM_FAKE_TRACE; catches
/// all exceptions.
template <typename Body>
CUresult entry(std::string_view name, Body&& body, bool needs_init = true) noexcept {
  CUresult result = detail::before_call(name, needs_init);
  if (result == cuda::CUDA_SUCCESS) {
    try {
      result = body();
    } catch (const std::bad_alloc&) {
      result = cuda::CUDA_ERROR_OUT_OF_MEMORY;
    } catch (...) {
      result = cuda::CUDA_ERROR_UNKNOWN;
    }
  }
  detail::after_call(name, result);
  return result;
}

[[nodiscard]] inline void* as_pointer(cuda::CUdeviceptr pointer) noexcept {
  return reinterpret_cast<void*>(pointer);
}
[[nodiscard]] inline cuda::CUdeviceptr as_address(const void* pointer) noexcept {
  return reinterpret_cast<cuda::CUdeviceptr>(pointer);
}

}  // namespace gpushm::fake
