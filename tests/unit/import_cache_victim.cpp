// SPDX-License-Identifier: Apache-2.0
// Opens what the import cache has, again and again, between the tracer's marks.
//   import_cache_victim SOCKET
#include <unistd.h>

#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include "gpushm/gpushm.hpp"
#include "process/deadline.hpp"
#include "ptrace/marker.hpp"

namespace {

/// Every other thread of this process sleeps in poll(2) without a timeout: the client's own reads
/// the socket then, after it has left it to the last request for a millisecond.
bool others_wait_for_ever() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(::getpid())) {
      continue;
    }
    std::ifstream in(task.path() / "syscall");
    std::string number;
    std::string set;
    std::string count;
    std::string timeout;
    in >> number >> set >> count >> timeout;
    if (number != "7" || timeout.size() < 8 || timeout.substr(timeout.size() - 8) != "ffffffff") {
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
      kept.reset();  // its last user: it goes to the kept ones and comes back
    };
    for (int i = 0; i < 10; ++i) {
      open_both();
    }
    if (!gpushm_testing::eventually(others_wait_for_ever, std::chrono::seconds(10))) {
      std::cerr << "a thread does not come to rest" << std::endl;
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
