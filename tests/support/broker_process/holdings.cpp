// SPDX-License-Identifier: Apache-2.0
#include "tests/support/broker_process/holdings.hpp"

#include <unistd.h>

#include <thread>
#include <utility>

#include "tests/support/process/deadline.hpp"

namespace gpushm_tests {
namespace {

constexpr std::string_view project_files = "memfd:gpushm";

}  // namespace

holdings holdings_of(const std::vector<pid_t>& pids) {
  holdings sum;
  for (const auto pid : pids) {
    for (const auto& [kind, count] : gpushm_testing::count_descriptors(pid)) {
      // This process's pipes to its children and their pidfds exist only while the children do.
      const bool harness = pid == ::getpid() && (kind == "pipe" || kind == "anon_inode:[pidfd]");
      if (!harness) {
        sum.descriptors[kind] += count;
      }
    }
    sum.mappings += gpushm_testing::count_mappings(pid, project_files);
  }
  sum.bytes = gpushm_testing::shared_memory_bytes(pids, project_files);
  return sum;
}

holdings settled_holdings_of(const std::vector<pid_t>& pids) {
  constexpr int samples = 10;
  holdings last = holdings_of(pids);
  for (int same = 0; same < samples; ++same) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (holdings now = holdings_of(pids); now != last) {
      last = std::move(now);
      same = 0;
    }
  }
  return last;
}

std::string to_text(const holdings& value) {
  return "descriptors " + gpushm_testing::to_text(value.descriptors) + "; " +
         std::to_string(value.mappings) + " mappings; " + std::to_string(value.bytes) + " bytes";
}

::testing::AssertionResult back_to(const holdings& expected,
                                   const std::vector<pid_t>& pids,
                                   std::chrono::milliseconds timeout) {
  holdings now;
  const auto same = [&] {
    now = holdings_of(pids);
    return now == expected;
  };
  if (gpushm_testing::eventually(same, timeout)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "resources were left over\n  expected: " << to_text(expected)
         << "\n  held:     " << to_text(now);
}

}  // namespace gpushm_tests
