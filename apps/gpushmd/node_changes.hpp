// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "apps/gpushmd/settings.hpp"

namespace gpushm::agent {

/// The file in the state directory that makes the agent release the GPUs while it exists.
inline constexpr const char* release_file_name = "release-gpus";
[[nodiscard]] std::string release_file(const settings& chosen);

/// Detects what an agent that uses GPUs cannot follow while it runs: another driver (its library,
/// its root directory, the loaded kernel module), because a process cannot replace the NVML that it
/// has loaded, and a request to release the GPUs, because only the end of its programs is sure to
/// close every device node. In both cases the agent starts again.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class node_changes {
 public:
  explicit node_changes(const settings& start);

  /// Whether the GPUs were to be released when this object was created.
  [[nodiscard]] bool released() const noexcept { return released_; }
  /// Why the agent has to start again; empty: it does not. Reads files, once in a second at most. A
  /// change of the driver counts once two readings are equal: an installation has many steps.
  [[nodiscard]] std::string next(
      std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now());

 private:
  [[nodiscard]] std::string read_driver();

  const settings start_;
  const bool watches_;  ///< false: this agent uses no GPU
  const bool released_;
  std::string library_;  ///< of the last search; empty: none
  std::string places_;   ///< of the last reading: where a driver would be, and the loaded version
  unsigned readings_without_search_ = 0;
  std::string driver_;  ///< at the start
  std::string last_;    ///< the last reading
  std::chrono::steady_clock::time_point next_reading_;
};

}  // namespace gpushm::agent
