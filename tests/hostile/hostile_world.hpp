// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/broker_process/broker_process.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/support/raw_session/forked_process.hpp"
#include "tests/support/raw_session/good_client.hpp"
#include "tests/support/raw_session/raw_session.hpp"

namespace gpushm_tests {

using gpushm_testing::forked_process;
using gpushm_testing::good_figures;
using gpushm_testing::raw_session;
using gpushm_testing::scaled_timeout;

inline constexpr std::uint64_t mebibyte = 1UL << 20U;

/// The good client's uid if the test may choose it: differs from the broker's and the attackers'.
inline constexpr uid_t good_uid = 1001;

/// A flood's name as a valid GoogleTest name.
[[nodiscard]] inline std::string identifier(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// A broker, a good client and attackers in separate processes. Tests assert that the good client
/// gets replies and that the broker's memory stays bounded, but not how fast: tests run on loaded
/// machines. Skips unless it runs as root, so that attackers have another uid, and outside a
/// container's cgroup, which would make all of them one tenant.
class hostile : public ::testing::Test {
 protected:
  explicit hostile(std::vector<std::string> limits = {}, unsigned open_files = 0)
      : limits_(std::move(limits)), open_files_(open_files) {}

  void SetUp() override {
    if (::geteuid() != 0) {
      GTEST_SKIP() << "needs root: attackers run under another uid than the good client";
    }
    if (const auto tenant = gpushm_testing::one_tenant_here()) {
      GTEST_SKIP() << "attackers and the good client are one tenant here: " << *tenant;
    }
    broker_.emplace(directory_ / "socket", limits_, open_files_);
    good_.emplace(socket(), gpushm_testing::good_client_options{.process = {.uid = good_uid}});
    memory_before_ = broker_memory();
  }

  void TearDown() override {
    if (broker_) {
      EXPECT_TRUE(broker_->process().running()) << broker_->process().output().all_output();
    }
  }

  [[nodiscard]] const std::string& socket() const { return broker_->socket_path(); }
  [[nodiscard]] raw_session greeted() const { return raw_session::greeted(socket()); }

  /// Runs `body` under the attackers' uid. The process keeps its descriptors open until the result
  /// is destroyed.
  [[nodiscard]] static forked_process attacker(
      const std::function<void(forked_process::parent_link&)>& body,
      const gpushm_testing::forked_options& options = {.uid = gpushm_testing::hostile_uid,
                                                       .niceness = 5}) {
    return forked_process::start(options, body);
  }

  /// Heap and shared memory of the broker, including clients' chunks.
  [[nodiscard]] std::uint64_t broker_memory() const {
    return gpushm_testing::anonymous_bytes(broker_->pid()) +
           gpushm_testing::shared_memory_bytes({broker_->pid()}, "gpushm");
  }
  /// Growth since the start in bytes; 0 if memory shrank.
  [[nodiscard]] std::uint64_t memory_growth() const {
    const auto now = broker_memory();
    return now > memory_before_ ? now - memory_before_ : 0;
  }

  /// Measures the good client and the broker's memory for `window`, and asserts progress.
  good_figures expect_progress(std::chrono::milliseconds window,
                               std::chrono::milliseconds worst = std::chrono::seconds(2),
                               std::uint64_t replies = 20) {
    good_->begin();
    const auto end = gpushm_testing::clock::now() + window;
    peak_growth_ = 0;
    while (gpushm_testing::clock::now() < end && broker_->process().running()) {
      peak_growth_ = std::max(peak_growth_, memory_growth());
      gpushm_testing::sleep_for(std::chrono::milliseconds(50));
    }
    const auto figures = good_->end();
    EXPECT_FALSE(figures.dropped) << "the broker closed the good client's connection";
    EXPECT_EQ(figures.failures, 0U);
    EXPECT_GE(figures.replies, replies);
    EXPECT_LT(figures.worst, gpushm_testing::wait_limit(worst));
    report(figures);
    return figures;
  }

  /// Writes to the test's output and XML, for comparing two builds.
  void report(const good_figures& figures) const {
    const auto milliseconds = [](std::chrono::nanoseconds value) {
      return std::to_string(static_cast<double>(value.count()) / 1e6);
    };
    RecordProperty("answers", std::to_string(figures.replies));
    RecordProperty("worst_ms", milliseconds(figures.worst));
    RecordProperty("peak_growth_mib", std::to_string(peak_growth_ / mebibyte));
    std::cout << "  good client: " << figures.replies << " answers, worst "
              << milliseconds(figures.worst) << " ms; broker grew by at most "
              << peak_growth_ / mebibyte << " MiB\n";
  }

  gpushm_testing::temp_dir directory_{0755};
  std::vector<std::string> limits_;
  unsigned open_files_;
  std::optional<broker_process> broker_;
  std::optional<gpushm_testing::good_client> good_;
  std::uint64_t memory_before_ = 0;
  std::uint64_t peak_growth_ = 0;
};

}  // namespace gpushm_tests
