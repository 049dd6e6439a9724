// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/process/proc_counters.hpp"

namespace gpushm_tests {

/// Mappings of the project's memory and descriptors of a set of processes, without the pipes and
/// pidfds of this process, which belong to the harness.
struct holdings {
  gpushm_testing::descriptor_counts descriptors;
  std::size_t mappings = 0;  ///< of the project's memfds
  std::uint64_t bytes = 0;   ///< in the project's memfds
  friend bool operator==(const holdings&, const holdings&) = default;
};

[[nodiscard]] holdings holdings_of(const std::vector<pid_t>& pids);
/// As `holdings_of`, once nothing has changed for a tenth of a second: a process that has just
/// replied may still have to close the descriptors that it sent.
[[nodiscard]] holdings settled_holdings_of(const std::vector<pid_t>& pids);
[[nodiscard]] std::string to_text(const holdings& value);

/// Passes if the processes hold exactly `expected` again within `timeout`; else reports both.
[[nodiscard]] ::testing::AssertionResult back_to(
    const holdings& expected,
    const std::vector<pid_t>& pids,
    std::chrono::milliseconds timeout = std::chrono::seconds(1));

}  // namespace gpushm_tests
