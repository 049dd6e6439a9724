// SPDX-License-Identifier: Apache-2.0
// Many clients in one process, each with its own connection, joining from several threads.
//   client_crowd SOCKET NAME COUNT
// Each opens the segment and reads it. Prints "all open"; closes all on a line from standard input.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <future>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpushm/gpushm.hpp"

namespace {

struct member {
  gpushm::client client;
  gpushm::segment found;
};

std::vector<member> join(const std::string& socket, const std::string& name, std::size_t count) {
  std::vector<member> members;
  for (std::size_t i = 0; i < count; ++i) {
    auto client =
        gpushm::client::connect({.socket_path = socket, .timeout = std::chrono::seconds(20)});
    auto opened = client.open(name, {.timeout = std::chrono::seconds(20)});
    std::vector<std::byte> bytes(opened.size_bytes());
    opened.read(0, bytes);
    if (std::any_of(
            bytes.begin(), bytes.end(), [&](std::byte value) { return value != bytes.front(); })) {
      throw std::runtime_error("wrong contents");
    }
    members.push_back({std::move(client), std::move(opened)});
  }
  return members;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv, argv + argc);
    constexpr std::size_t groups = 5;
    const std::size_t count = std::stoul(arguments.at(3)) / groups;
    std::vector<std::future<std::vector<member>>> joining;
    for (std::size_t i = 0; i < groups; ++i) {
      joining.push_back(std::async(std::launch::async,
                                   [&] { return join(arguments.at(1), arguments.at(2), count); }));
    }
    std::vector<std::vector<member>> members;
    for (auto& group : joining) {
      members.push_back(group.get());
    }
    std::cout << "all open" << std::endl;
    std::string line;
    std::getline(std::cin, line);
    return 0;
  } catch (const std::exception& problem) {
    std::cerr << "client_crowd: " << problem.what() << '\n';
    return 1;
  }
}
