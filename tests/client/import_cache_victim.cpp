// SPDX-License-Identifier: Apache-2.0
// Opens cached segments repeatedly, between the tracer's marks.
//   import_cache_victim SOCKET
#include <unistd.h>

#include <array>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include "gpushm/gpushm.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/ptrace/marker.hpp"

namespace {

/// True if every other thread of this process sleeps without a timeout: the client's in poll(2),
/// its worker in futex(2).
bool others_sleep_without_timeout() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(::getpid())) {
      continue;
    }
    std::ifstream in(task.path() / "syscall");
    std::string number;
    std::array<std::string, 4> arguments;
    in >> number;
    for (std::string& each : arguments) {
      in >> each;
    }
    const bool polls = number == "7" && arguments[2].ends_with("ffffffff");
    const bool waits = number == "202" && arguments[3] == "0x0";
    if (!polls && !waits) {
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) {
      return 2;
    }
    auto client = gpushm::client::connect({.socket_path = argv[1]});
    const auto used = client.open("used");
    const auto open_both = [&] {
      auto again = client.open("used");
      auto kept = client.open("kept");
      kept.reset();  // its last user: the mapping becomes unused, and used again by the next open
    };
    for (int i = 0; i < 10; ++i) {
      open_both();
    }
    if (!gpushm_testing::eventually(others_sleep_without_timeout, std::chrono::seconds(10))) {
      std::cerr << "a thread does not go to sleep" << std::endl;
      return 3;
    }
    const std::uint64_t before = client.cache_stats().hits;
    gpushm_testing::mark_begin();
    for (int i = 0; i < 1000; ++i) {
      open_both();
    }
    gpushm_testing::mark_end();
    std::cout << "hits " << client.cache_stats().hits - before << std::endl;
    return 0;
  } catch (const std::exception& why) {
    std::cerr << why.what() << std::endl;
    return 1;
  }
}
