// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "testing/container/container.hpp"
#include "testing/process/child.hpp"

namespace gpushm_tests {

struct agent_settings {
  std::vector<std::pair<std::string, std::string>> env;
  bool own_pid_namespace = false;  ///< is PID 1 of a new one; as root only
  unsigned open_files = 0;         ///< its limit; 0: this process's
};

/// A share_agent in a process or a container of its own; killed with the object. Move-only.
/// Distinct objects: safe. Shared objects: unsafe.
class agent {
 public:
  explicit agent(const agent_settings& settings);
  explicit agent(gpushm_testing::container inside);

  /// The agent's answer without "ok "; a test failure when it is an error.
  std::string ask(const std::string& order);
  /// The error's code and text; a test failure when there is none.
  std::string fails(const std::string& order);
  /// Its code alone.
  std::string code(const std::string& order);
  /// Sends without waiting for the answer.
  void tell(const std::string& order);
  /// The next answer, as it is.
  std::string answer(std::chrono::milliseconds timeout = std::chrono::seconds(60));

  void kill(int signal_number);
  /// Returns when the process is stopped; a process of its own, without a PID namespace.
  void stop();
  /// Returns when the process is gone.
  void kill_and_wait();

 private:
  std::optional<gpushm_testing::child> process_;
  std::optional<gpushm_testing::container> container_;
};

}  // namespace gpushm_tests
