// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/share/agent.hpp"
#include "tests/support/container/gpu_access.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {

inline constexpr std::uint64_t mib = 1UL << 20U;

/// The kind of memory, the driver, and the namespaces of the two processes.
struct share_setting {
  const char* kind = "malloc";  ///< as in share_agent's alloc
  bool real = false;            ///< the real driver, else the fake one
  bool both_pid_1 = false;      ///< each in a separate PID namespace
};
inline std::ostream& operator<<(std::ostream& out, const share_setting& value) {
  return out << value.kind << (value.real ? "_real" : "_fake")
             << (value.both_pid_1 ? "_both_pid_1" : "");
}
inline std::string name_of(const ::testing::TestParamInfo<share_setting>& info) {
  std::string text = ::testing::PrintToString(info.param);
  for (char& each : text) {
    each = each == '-' ? '_' : each;
  }
  return text;
}

/// A broker in this process, which never uses CUDA, and agents that share and open.
class share_world : public ::testing::TestWithParam<share_setting> {
 protected:
  void SetUp() override {
    if (GetParam().both_pid_1 && ::geteuid() != 0) {
      GTEST_SKIP() << "a PID namespace needs root";
    }
    if (GetParam().real) {
      if (gpushm_testing::nvidia_minors().empty()) {
        GTEST_SKIP() << "no NVIDIA GPU on this machine";
      }
    } else {
      gpushm::fake::fake_gpus_options two_gpus;
      two_gpus.gpus = 2;
      two_gpus.size_bytes = 2UL << 30U;
      fake_.emplace(two_gpus);
    }
    options_.socket_path = folder_ / "socket";
    options_.accept_fake_chunks = !GetParam().real;
    broker_.emplace(gpushm::broker::start(options_));
  }

  [[nodiscard]] agent_settings settings() const {
    agent_settings result;
    if (fake_) {
      result.env = fake_->environment();
    }
    result.own_pid_namespace = GetParam().both_pid_1;
    return result;
  }
  /// Starts an agent that is connected and uses GPU `ordinal`.
  [[nodiscard]] agent start(int ordinal = 0) const { return start(settings(), ordinal); }
  [[nodiscard]] agent start(const agent_settings& settings, int ordinal = 0) const {
    agent started(settings);
    started.request("connect " + options_.socket_path);
    started.request("device " + std::to_string(ordinal));
    if (GetParam().both_pid_1) {
      EXPECT_EQ(started.request("pid"), "1");
    }
    return started;
  }
  [[nodiscard]] static std::string kind() { return GetParam().kind; }
  /// Whether the memory is exporter-bound.
  [[nodiscard]] static bool is_bound() { return kind() == "malloc" || kind() == "pool"; }
  [[nodiscard]] static std::string backend() {
    return kind() == "malloc" ? "cuda-ipc"
           : kind() == "pool" ? "cuda-pool"
           : kind() == "vmm"  ? "cuda-vmm"
                              : "host";
  }
  [[nodiscard]] gpushm::client watch() const {
    return gpushm::client::connect({.socket_path = options_.socket_path});
  }
  [[nodiscard]] static std::string numbers(std::initializer_list<std::uint64_t> values) {
    std::string text;
    for (const std::uint64_t value : values) {
      text += (text.empty() ? "" : " ") + std::to_string(value);
    }
    return text;
  }
  static std::uint64_t first_number(const std::string& text) { return std::stoull(text); }

  std::optional<gpushm::fake::fake_gpus> fake_;
  gpushm_testing::temp_dir folder_{0755};
  gpushm::broker_options options_;
  std::optional<gpushm::broker> broker_;
};

}  // namespace gpushm_tests
