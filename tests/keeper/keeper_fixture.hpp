// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <string>

#include "base/process/signals.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {

inline constexpr std::chrono::seconds patience{20};

/// Keepers, and their programs `keeper_client`, which share standard input and output with them.
class keeper_fixture : public testing::Test {
 protected:
  /// The next line in which a program says what it has inherited.
  static std::string inherited(gpushm_testing::child& keeper) {
    return keeper.wait_for_line("inherited|failed", patience);
  }
  /// Sends the program a command, and returns its reply.
  static std::string command(gpushm_testing::child& keeper, const std::string& line) {
    keeper.write(line + "\n");
    return keeper.wait_for_line("done|error", patience);
  }
  /// Of the keeper.
  static std::size_t descriptors(gpushm_testing::child& keeper) {
    return gpushm_testing::total(gpushm_testing::count_descriptors(keeper.pid()));
  }

  /// Kills both processes.
  static void kill_all_of(gpushm_testing::child& keeper) {
    keeper.kill(SIGSTOP);  // or it would start another worker
    gpushm::base::signal_process(gpushm_testing::worker_of_keeper(keeper.pid()), SIGKILL);
    keeper.kill(SIGKILL);
    EXPECT_EQ(keeper.wait_exit(patience), gpushm_testing::killed_by(SIGKILL));
  }

  gpushm_testing::temp_dir directory_;
};

}  // namespace gpushm_tests
