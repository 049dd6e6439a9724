// SPDX-License-Identifier: Apache-2.0
#include "process/quiet_fork.hpp"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace gpushm_testing {

namespace {

/// The letter in /proc/<pid>/task/<tid>/stat, behind the name in parentheses; 0: it is gone.
char state_of(const std::filesystem::path& task) {
  std::string line;
  std::getline(std::ifstream(task / "stat"), line);
  const std::size_t name_end = line.rfind(") ");
  return name_end == std::string::npos ? '\0' : line[name_end + 2];
}

bool others_sleep() {
  const std::string own = std::to_string(::gettid());
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const char state = task.path().filename() == own ? 'S' : state_of(task.path());
    if (state != 'S' && state != '\0') {
      return false;
    }
  }
  return true;
}

}  // namespace

pid_t quiet_fork() {
  using clock = std::chrono::steady_clock;
  const auto deadline = clock::now() + std::chrono::seconds(5);
  while (!others_sleep() && clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return ::fork();
}

}  // namespace gpushm_testing
