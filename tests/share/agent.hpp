// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/container/container.hpp"
#include "tests/support/process/child.hpp"

namespace gpushm_tests {

struct agent_settings {
  std::string program = "share_agent";
  std::vector<std::pair<std::string, std::string>> env;
  bool own_pid_namespace = false;  ///< runs as PID 1 of a new one; root only
  unsigned open_files = 0;         ///< its limit; 0: this process's
};

/// A program that answers orders, such as share_agent, in a process or a container, killed when the
/// object is destroyed. Move-only.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class agent {
 public:
  explicit agent(const agent_settings& settings);
  explicit agent(gpushm_testing::container inside);

  /// Returns the agent's reply without "ok "; a test failure if it is an error.
  std::string request(const std::string& order);
  /// Returns the error's code and text; a test failure if there is none.
  std::string fails(const std::string& order);
  /// Returns the error's code.
  std::string code(const std::string& order);
  /// Sends without waiting for the reply.
  void send(const std::string& order);
  /// Returns the next answer, unchanged.
  std::string reply(std::chrono::milliseconds timeout = std::chrono::seconds(60));

  void kill(int signal_number);
  /// Blocks until the process is stopped; only for processes without a PID namespace.
  void stop();
  /// Blocks until the process has ended.
  void kill_and_wait();

 private:
  std::optional<gpushm_testing::child> process_;
  std::optional<gpushm_testing::container> container_;
};

}  // namespace gpushm_tests
