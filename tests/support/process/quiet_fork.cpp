// SPDX-License-Identifier: Apache-2.0
#include "tests/support/process/quiet_fork.hpp"

#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/support/process/deadline.hpp"
#include "tests/support/process/proc_counters.hpp"

namespace gpushm_testing {

namespace {

bool others_sleep() {
  const std::string own = std::to_string(::gettid());
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const char state = task.path().filename() == own ? 'S' : state_in(task.path());
    if (state != 'S' && state != '\0') {
      return false;
    }
  }
  return true;
}

}  // namespace

pid_t quiet_fork() {
  static_cast<void>(eventually(others_sleep, std::chrono::seconds(5)));
  return ::fork();
}

}  // namespace gpushm_testing
