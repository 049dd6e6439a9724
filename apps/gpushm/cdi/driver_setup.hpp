// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "containers/discover/gpus/generate.hpp"

namespace gpushm::cli {

/// Completes what a driver's installation leaves to the first program that needs it: loads the
/// module nvidia-uvm, and creates missing device nodes. Only for root; otherwise does nothing.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class driver_setup {
 public:
  /// `options` must outlive this object.
  explicit driver_setup(const discover::generate_options& options) : options_(options) {}

  /// Does what is necessary now, and logs it. Blocks while modprobe runs, at most 30 s; a failed
  /// load is tried again after a minute. Returns whether something was created or loaded.
  bool complete();

  /// Why the last call could not complete the driver, one line per failure.
  [[nodiscard]] const std::vector<std::string>& failures() const noexcept { return failures_; }

 private:
  [[nodiscard]] bool load_uvm();

  const discover::generate_options& options_;
  std::vector<std::string> failures_;
  std::string load_failure_;
  std::optional<std::chrono::steady_clock::time_point> last_load_;
};

}  // namespace gpushm::cli
