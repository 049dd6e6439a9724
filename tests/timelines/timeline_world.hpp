// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/share/agent.hpp"
#include "tests/support/container/gpu_access.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {

/// The code of the error that `call` throws.
template <typename Call>
std::optional<gpushm::errc> failure_of(Call&& call) {
  try {
    call();
    return std::nullopt;
  } catch (const gpushm::error& why) {
    return why.code();
  }
}

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
    agent started = start_alone(is_pid_1, connections);
    started.request("connect " + options_.socket_path);
    return started;
  }
  /// Starts an agent that does not know the broker.
  [[nodiscard]] agent start_alone(bool is_pid_1 = false,
                                  const std::string& connections = {},
                                  const std::string& failures = {}) const {
    agent_settings settings;
    settings.program = "timeline_agent";
    if (fake_) {
      settings.env = fake_->environment();
    }
    if (!connections.empty()) {
      settings.env.emplace_back("CUDA_DEVICE_MAX_CONNECTIONS", connections);
    }
    if (!failures.empty()) {  // of the fake driver
      settings.env.emplace_back("GPUSHM_FAKE_FAIL", failures);
    }
    settings.own_pid_namespace = is_pid_1;
    return agent(settings);
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

enum class gpus : std::uint8_t { fake, real };
inline std::string name_of(const testing::TestParamInfo<gpus>& info) {
  return info.param == gpus::fake ? "fake" : "real";
}

/// Agents on the fake driver, or on real GPUs if there are any.
class test_on_gpus : public testing::TestWithParam<gpus> {
 protected:
  void SetUp() override {
    const bool fake = GetParam() == gpus::fake;
    if (!fake && gpushm_testing::nvidia_minors().empty()) {
      GTEST_SKIP() << "no NVIDIA GPU on this machine";
    }
    world_.emplace(fake);
  }
  /// The second GPU if there is one.
  [[nodiscard]] static int peer() {
    return GetParam() == gpus::fake || gpushm_testing::nvidia_minors().size() > 1 ? 1 : 0;
  }

  std::optional<timeline_world> world_;
};

}  // namespace gpushm_tests
