// SPDX-License-Identifier: Apache-2.0
// One round of a producer or a consumer between the tracer's marks.
//   death_victim produce SOCKET NAME leased|persistent
//   death_victim consume SOCKET NAME
//   death_victim share SOCKET NAME
// Prints its progress to standard output: "published", "opened", "releasing", "left".

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "gpushm/gpushm.hpp"
#include "tests/support/broker_process/round.hpp"
#include "tests/support/ptrace/marker.hpp"

namespace {

using gpushm_tests::round_chunk_bytes;
using gpushm_tests::round_metadata;
using gpushm_tests::round_pattern;
using gpushm_tests::round_size_bytes;

void print_line(const char* line) {
  std::cout << line << std::endl;
}

void produce(const std::string& socket, const std::string& name, gpushm::lifetime lifetime) {
  auto client = gpushm::client::connect({.socket_path = socket});
  auto created = client.create(name,
                               {.size_bytes = round_size_bytes,
                                .device = "host",
                                .lifetime = lifetime,
                                .chunk_bytes = round_chunk_bytes});
  created.fill(round_pattern);
  created.publish(round_metadata);
  print_line("published");
  auto own = client.open(name);
  own.reset();
  print_line("releasing");
  created.reset();
}

void consume(const std::string& socket, const std::string& name) {
  auto client = gpushm::client::connect({.socket_path = socket});
  auto opened = client.open(name, {.timeout = std::chrono::seconds(20)});
  print_line("opened");
  std::vector<std::byte> bytes(opened.size_bytes());
  opened.read(0, bytes);
  const auto is_pattern = [](std::byte value) { return value == round_pattern; };
  if (!std::all_of(bytes.begin(), bytes.end(), is_pattern)) {
    throw std::runtime_error("wrong contents");
  }
  print_line("releasing");
  opened.reset();
}

/// Shares existing memory: a sealed memfd that this process has mapped.
void share(const std::string& socket, const std::string& name) {
  const int fd = ::memfd_create("death-victim", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (::ftruncate(fd, static_cast<off_t>(round_size_bytes)) != 0 ||
      ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw std::runtime_error("memfd");
  }
  void* const memory = ::mmap(nullptr, round_size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {  // NOLINT(performance-no-int-to-ptr): the macro is a cast
    throw std::runtime_error("mmap");
  }
  std::memset(memory, std::to_integer<int>(round_pattern), round_size_bytes);
  auto client = gpushm::client::connect({.socket_path = socket});
  auto shared = client.share(name, memory, round_size_bytes);
  print_line("published");
  shared.unshare();
  print_line("releasing");
  shared.reset();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv, argv + argc);
    gpushm_testing::mark_begin();
    if (arguments.at(1) == "produce") {
      produce(arguments.at(2),
              arguments.at(3),
              arguments.at(4) == "persistent" ? gpushm::lifetime::persistent
                                              : gpushm::lifetime::leased);
    } else if (arguments.at(1) == "share") {
      share(arguments.at(2), arguments.at(3));
    } else {
      consume(arguments.at(2), arguments.at(3));
    }
    print_line("left");
    gpushm_testing::mark_end();
    return 0;
  } catch (const std::exception& problem) {
    std::cerr << "death_victim: " << problem.what() << '\n';
    return 1;
  }
}
