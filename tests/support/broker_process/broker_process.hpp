// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tests/support/process/child.hpp"

namespace gpushm_tests {

/// The program test_broker with its socket; killed on destruction, which prints its log if the test
/// has failed. Move-only.
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class broker_process {
 public:
  /// Returns once clients can connect. `limits` as accepted by test_broker ("max_connections=8").
  /// `open_files`: its limit of descriptors, 0 for this process's limit. Throws `harness_error`.
  broker_process(std::string socket_path,
                 const std::vector<std::string>& limits = {},
                 unsigned open_files = 0);
  broker_process(broker_process&&) noexcept = default;
  broker_process& operator=(broker_process&&) = delete;
  ~broker_process();

  [[nodiscard]] const std::string& socket_path() const noexcept { return socket_path_; }
  [[nodiscard]] pid_t pid() const noexcept { return process_.pid(); }
  [[nodiscard]] gpushm_testing::child& process() noexcept { return process_; }

 private:
  std::string socket_path_;
  gpushm_testing::child process_;
};

}  // namespace gpushm_tests
