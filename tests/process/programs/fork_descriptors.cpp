// SPDX-License-Identifier: Apache-2.0
// A client whose threads create, open and connect while it forks.
//   fork_descriptors SOCKET ROUNDS
// Each child prints the sockets, memory and event descriptors that it has. Exits with 1 if there
// were any.
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <exception>
#include <functional>
#include <iostream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/files/page_size.hpp"
#include "gpushm/gpushm.hpp"

namespace {

using gpushm::client;

/// Several batches, each of which is in flight for a while.
const std::uint64_t chunk_bytes = gpushm::base::host_page_bytes();
constexpr std::uint64_t chunks = 400;
gpushm::create_options of_many_chunks() {
  return {.size_bytes = chunks * chunk_bytes, .device = "host", .chunk_bytes = chunk_bytes};
}

/// Descriptors that would keep a connection, a lock or memory alive. Standard input, output and
/// error are left to the caller.
std::string descriptors() {
  std::string text;
  DIR* const directory = ::opendir("/proc/self/fd");
  while (const dirent* const entry = ::readdir(directory)) {
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    std::array<char, 256> target{};
    const auto size = ::readlink(path.c_str(), target.data(), target.size());
    const std::string_view kind(target.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
    if (std::string_view(entry->d_name).size() == 1 && entry->d_name[0] <= '2') {
      continue;
    }
    for (const char* const kept_kind : {"socket:", "/memfd:gpushm", "[eventfd]", "[pidfd]"}) {
      if (kind.find(kept_kind) != std::string_view::npos) {
        text.append(kind).append("\n");
      }
    }
  }
  ::closedir(directory);
  return text;
}

void repeat(const std::atomic<bool>& stop, const std::function<void()>& work) {
  while (!stop) {
    try {
      work();
    } catch (const gpushm::error& why) {
      std::cerr << "work: " << why.what() << std::endl;
    }
  }
}

int run(const std::string& socket, int rounds) {
  auto client = client::connect({.socket_path = socket});
  auto kept = client.create("kept", of_many_chunks());
  kept.publish();
  auto other = client.create("other", of_many_chunks());
  other.publish();
  const std::array<std::string, 2> names{"kept", "other"};
  std::atomic<bool> stop{false};
  std::vector<std::jthread> busy;
  busy.emplace_back(
      [&] { repeat(stop, [&] { client.create("made", of_many_chunks()).publish(); }); });
  busy.emplace_back([&] {
    repeat(stop, [&] {
      auto opener = client::connect({.socket_path = socket});
      (void)opener.open("kept");
      (void)opener.open_many(names);
    });
  });
  int status = 0;
  for (int round = 0; round < rounds && status == 0; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      const std::string found = descriptors();
      std::cout << found << std::flush;
      ::_exit(found.empty() ? 0 : 1);
    }
    ::waitpid(child, &status, 0);
  }
  stop = true;
  return status == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv, argv + argc);
    return run(arguments.at(1), std::stoi(arguments.at(2)));
  } catch (const std::exception& problem) {
    std::cerr << "fork_descriptors: " << problem.what() << '\n';
    return 1;
  }
}
