// SPDX-License-Identifier: Apache-2.0
// A process that continues to write a host segment after its connection has ended without a
// goodbye, as the GPU work of a dead process does.
//   fence_writer SOCKET NAME HOW MILLISECONDS
// HOW: "exits": on "go" from standard input it closes the connection, writes for MILLISECONDS,
//      then exits. "killed": the same, but it writes until it is killed.
//      "child": on "go" a child created without fork handlers continues, and this process exits;
//      the child writes until it is killed.
//      "forked-child": a normally forked child stays alive and writes nothing.
//      "execs": on "go" it executes another program, which runs for MILLISECONDS.
// Prints "ready" once the segment is published; children print "child PID" to standard error.

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/files/fork_guard.hpp"
#include "protocol/wire/messages.hpp"
#include "tests/support/process/quiet_fork.hpp"
#include "tests/support/raw_session/raw_session.hpp"

namespace {

using clock = std::chrono::steady_clock;
using gpushm_testing::raw_session;
namespace wire = gpushm::wire;

/// Sends Hello with a pidfd and the life pipe, as the library does.
raw_session greet(const std::string& socket) {
  raw_session session(socket);
  const gpushm::base::unique_fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  const std::vector<int> proof{pidfd.get(), gpushm::base::life_pipe()};
  wire::hello hello;
  hello.fence = gpushm::fence::proven;
  hello.takes_tables = true;
  session.greet(hello, proof);
  return session;
}

/// Publishes a segment of one page. Returns its memory.
std::atomic<std::uint64_t>* publish(raw_session& session, const std::string& name) {
  const auto chunk = gpushm_testing::make_chunk(4096);
  const auto reserved = session.request(gpushm_testing::reserve_pages(name, 1));
  const auto* reservation = gpushm_testing::body_of<wire::reserved>(reserved);
  if (reservation == nullptr) {
    throw std::runtime_error("not reserved");
  }
  const std::vector<int> chunks{chunk.get()};
  const auto attached = session.request(wire::attach{reservation->generation, 0, {4096}}, chunks);
  const auto published = session.request(wire::publish{reservation->generation, {}});
  if (gpushm_testing::body_of<wire::done>(attached) == nullptr ||
      gpushm_testing::body_of<wire::done>(published) == nullptr) {
    throw std::runtime_error("not published");
  }
  void* const memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, chunk.get(), 0);
  if (memory == MAP_FAILED) {
    throw std::runtime_error("mmap");
  }
  return static_cast<std::atomic<std::uint64_t>*>(memory);
}

void write_until(std::atomic<std::uint64_t>& counter, clock::time_point end) {
  while (clock::now() < end) {
    counter.fetch_add(1);
    ::usleep(100);
  }
}

void wait_for_line() {
  std::string word;
  std::getline(std::cin, word);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv, argv + argc);
    if (arguments.size() == 3 && arguments[1] == "sleep") {
      ::usleep(static_cast<useconds_t>(std::stoul(arguments[2]) * 1'000));
      return 0;
    }
    const std::string& how = arguments.at(3);
    const auto time = std::chrono::milliseconds(std::stol(arguments.at(4)));
    constexpr auto forever = std::chrono::minutes(1);
    raw_session session = greet(arguments.at(1));
    std::atomic<std::uint64_t>& counter = *publish(session, arguments.at(2));
    counter = 1;
    std::cout << "ready" << std::endl;
    wait_for_line();
    if (how == "child" || how == "forked-child") {
      const pid_t child = how == "child"
                              ? static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0))
                              : gpushm_testing::quiet_fork();
      if (child == 0) {
        session.hang_up();
        ::setpgid(0, 0);  // the harness kills its parent's process group
        const std::string line = "child " + std::to_string(::getpid()) + "\n";
        static_cast<void>(!::write(STDERR_FILENO, line.data(), line.size()));
        if (how == "child") {
          write_until(counter, clock::now() + forever);
        }
        ::sleep(60);
        ::_exit(0);
      }
      ::usleep(100'000);
      ::_exit(0);
    }
    if (how == "execs") {
      ::execl("/proc/self/exe", argv[0], "sleep", arguments[4].c_str(), nullptr);
      ::_exit(9);
    }
    session.hang_up();
    write_until(counter, clock::now() + (how == "killed" ? forever : time));
    ::_exit(0);
  } catch (const std::exception& problem) {
    std::cerr << "fence_writer: " << problem.what() << '\n';
    return 1;
  }
}
