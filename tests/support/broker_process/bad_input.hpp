// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpushm/gpushm.hpp"
#include "tests/support/broker_process/broker_process.hpp"
#include "tests/support/broker_process/holdings.hpp"
#include "tests/support/broker_process/raw_client.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {

/// Returns the code of the error that `call` throws, which must have a cause and a next step;
/// nullopt if it throws none.
template <typename Call>
std::optional<gpushm::errc> code_of(Call&& call) {
  try {
    call();
  } catch (const gpushm::error& failure) {
    EXPECT_FALSE(failure.cause().empty());
    EXPECT_FALSE(failure.next_step().empty()) << failure.what();
    return failure.code();
  }
  return std::nullopt;
}

/// A broker in a separate process, and a client that other clients' bad input must not affect.
class bad_input : public ::testing::Test {
 protected:
  explicit bad_input(const std::vector<std::string>& limits = {})
      : broker_(directory_ / "socket", limits) {}

  void SetUp() override { before_ = settled_holdings_of(all_processes()); }

  /// Checks after every test that the broker runs, serves, and has the same resources as at the
  /// start.
  void TearDown() override {
    EXPECT_TRUE(broker_.process().running()) << broker_.process().output().all_output();
    EXPECT_TRUE(back_to(before_, all_processes(), std::chrono::seconds(5)));
    auto created = bystander_.create("bystander", {.size_bytes = 4096, .device = "host"});
    created.publish();
    EXPECT_EQ(bystander_.list().size(), 1U);
  }

  [[nodiscard]] raw_client greeted() const { return raw_client::greeted(broker_.socket_path()); }
  [[nodiscard]] std::vector<pid_t> all_processes() const { return {broker_.pid(), ::getpid()}; }
  /// Number of ending sessions with leases on `name` when its creator is first reported as gone.
  [[nodiscard]] std::optional<std::uint32_t> ending_count_after_creator_exit(
      const std::string& name) const {
    auto observer = greeted();
    std::optional<std::uint32_t> ending;
    static_cast<void>(gpushm_testing::eventually(
        [&] {
          const auto reply = observer.request(gpushm::wire::stat{name});
          const auto* all = gpushm_testing::body_of<gpushm::wire::listing>(reply);
          if (all != nullptr && !all->segments.front().creator_alive) {
            ending = all->segments.front().ending;
          }
          return ending.has_value();
        },
        std::chrono::seconds(20)));
    return ending;
  }
  [[nodiscard]] gpushm::client connect() const {
    return gpushm::client::connect({.socket_path = broker_.socket_path()});
  }

  gpushm_testing::temp_dir directory_;
  broker_process broker_;
  gpushm::client bystander_ = connect();
  holdings before_;
};

}  // namespace gpushm_tests
