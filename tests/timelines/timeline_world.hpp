// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>

#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "testing/fake_driver/fake_gpus.hpp"
#include "testing/process/deadline.hpp"
#include "testing/process/temp_dir.hpp"
#include "tests/share/agent.hpp"

namespace gpushm_tests {

/// A broker in this process, which never uses CUDA, and agents that use timelines.
class timeline_world {
 public:
  /// On fake GPUs, or on the machine's.
  explicit timeline_world(bool fake) {
    if (fake) {
      gpushm::fake::fake_gpus_options two_gpus;
      two_gpus.gpus = 2;
      fake_.emplace(two_gpus);
    }
    options_.socket_path = folder_ / "socket";
    options_.accept_fake_chunks = fake;
    options_.limits.fence_delay_ms = 100;
    start_broker();
  }

  /// Starts an agent that is connected.
  [[nodiscard]] agent start(bool is_pid_1 = false, const std::string& connections = {}) const {
    agent_settings settings;
    settings.program = "timeline_agent";
    if (fake_) {
      settings.env = fake_->environment();
    }
    if (!connections.empty()) {
      settings.env.emplace_back("CUDA_DEVICE_MAX_CONNECTIONS", connections);
    }
    settings.own_pid_namespace = is_pid_1;
    agent started(settings);
    started.request("connect " + options_.socket_path);
    return started;
  }
  [[nodiscard]] gpushm::client connect() const {
    return gpushm::client::connect({.socket_path = options_.socket_path});
  }
  [[nodiscard]] const std::string& socket_path() const { return options_.socket_path; }
  void start_broker() { broker_.emplace(gpushm::broker::start(options_)); }
  void stop_broker() { broker_.reset(); }

 private:
  std::optional<gpushm::fake::fake_gpus> fake_;
  gpushm_testing::temp_dir folder_{0755};
  gpushm::broker_options options_;
  std::optional<gpushm::broker> broker_;
};

}  // namespace gpushm_tests
