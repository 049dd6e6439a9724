// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "driver/cuda.hpp"
#include "driver/nvml_abi.hpp"
#include "gpushm/types.hpp"

namespace gpushm::driver {

/// A board as NVML sees it: also those that CUDA does not show this process.
struct nvml_gpu {
  device_id id;
  std::string name;
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;  ///< at the time of asking, over all processes
};

/// The NVML of this process: libnvidia-ml.so.1, opened and initialised once (again only by
/// `try_again`), never closed. A
/// function that an older one lacks returns NVML_ERROR_FUNCTION_NOT_FOUND.
///
/// Distinct objects: there is one. Shared objects: safe.
class nvml_library {
 public:
  /// The first call blocks for as long as nvmlInit takes; its outcome is kept, a failure too.
  /// Throws `errc::driver_unavailable`. Usable after a fork, unlike CUDA, as long as the child
  /// forked it off while no other thread was inside.
  [[nodiscard]] static const nvml_library& instance();
  [[nodiscard]] static const nvml_library* try_instance() noexcept;
  /// How the first call went; makes it if nobody has. Never throws.
  [[nodiscard]] static const library_outcome& outcome() noexcept;

  /// Has the first `instance` also try the library at `path`, where the linker finds none or the
  /// one that it finds does not start (no driver of its version is loaded). To be called before
  /// that, by one thread.
  static void look_also_at(const std::string& path);
  /// When the outcome is a failure, tries once more, and keeps that outcome from then on: for
  /// programs that were there before the driver. Blocks as `instance` does. Never throws.
  static void try_again() noexcept;
  /// Throws `errc::driver_error` unless `result` is NVML_SUCCESS. `call` is the function's name.
  static void check(nvml::nvmlReturn_t result, std::string_view object, std::string_view call);

  nvml_library(const nvml_library&) = delete;
  nvml_library& operator=(const nvml_library&) = delete;

  const nvml::functions* operator->() const noexcept { return &functions_; }

  /// "580.159.04"; empty when NVML does not say.
  [[nodiscard]] std::string driver_version() const;
  [[nodiscard]] std::string nvml_version() const;
  /// Every board that NVML shows, in its order. Throws `errc::driver_error`.
  [[nodiscard]] std::vector<nvml_gpu> gpus() const;

 private:
  nvml_library() = default;
  ~nvml_library() = default;
  nvml_library(nvml_library&&) noexcept = default;
  static nvml_library load(library_outcome& told, const char* name);

  nvml::functions functions_;
  friend struct loaded_nvml;
};

}  // namespace gpushm::driver
