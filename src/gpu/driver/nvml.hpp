// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/driver/cuda.hpp"
#include "gpu/driver/nvml_abi.hpp"
#include "gpushm/types.hpp"

namespace gpushm::driver {

/// A GPU as NVML reports it, including those that CUDA does not report in this process.
struct nvml_gpu {
  device_id id;
  std::string name;
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;  ///< at the time of the query, over all processes
};

/// The NVML of this process: libnvidia-ml.so.1, opened and initialised once (again only by
/// `try_again`), never closed. A function that an older library lacks returns
/// NVML_ERROR_FUNCTION_NOT_FOUND.
///
/// Thread-safety: singleton; shared objects: safe.
class nvml_library {
 public:
  /// The first call blocks for as long as nvmlInit takes; its outcome is kept, including a failure.
  /// Throws `errc::driver_unavailable`. Usable after a fork, unlike CUDA, provided that no other
  /// thread was in the library during the fork.
  [[nodiscard]] static const nvml_library& instance();
  [[nodiscard]] static const nvml_library* try_instance() noexcept;
  /// The outcome of the first call; makes that call if necessary. Never throws.
  [[nodiscard]] static const library_outcome& outcome() noexcept;

  /// Makes the first `instance` also try the library at `path`, if the linker finds none or the one
  /// it finds does not initialise (no driver of its version is loaded). Must be called before that,
  /// from one thread.
  static void set_alternative_path(const std::string& path);
  /// If the outcome is a failure, retries once and keeps the new outcome: for programs started
  /// before the driver. Blocks as `instance` does. Never throws.
  static void try_again() noexcept;
  /// Throws `errc::driver_error` unless `result` is NVML_SUCCESS. `call` is the function's name.
  static void check(nvml::nvmlReturn_t result, std::string_view object, std::string_view call);

  nvml_library(const nvml_library&) = delete;
  nvml_library& operator=(const nvml_library&) = delete;

  const nvml::functions* operator->() const noexcept { return &functions_; }

  /// "580.159.04"; empty if NVML does not report it.
  [[nodiscard]] std::string driver_version() const;
  [[nodiscard]] std::string nvml_version() const;
  /// Every GPU that NVML reports, in its order. Throws `errc::driver_error`.
  [[nodiscard]] std::vector<nvml_gpu> gpus() const;

 private:
  nvml_library() = default;
  ~nvml_library() = default;
  nvml_library(nvml_library&&) noexcept = default;
  static nvml_library load(library_outcome& details, const char* name);

  nvml::functions functions_;
  friend struct loaded_nvml;
};

}  // namespace gpushm::driver
