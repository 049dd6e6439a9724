// SPDX-License-Identifier: Apache-2.0
// A producer with a child that outlives it.
//   fork_parent SOCKET NAME none|fork|clone
// "fork" runs the atfork handlers, "clone" bypasses them, as some language runtimes do, "none"
// creates no child. The parent publishes, prints "ready" to standard error and waits to be killed.
// The child prints "child PID", after a fork also the results of its API calls, and lives until its
// standard input ends.

#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "gpushm/gpushm.hpp"
#include "tests/support/broker_process/round.hpp"
#include "tests/support/process/quiet_fork.hpp"

namespace {

template <typename Call>
void report(std::string_view name, Call&& call) {
  std::string outcome = "no error";
  try {
    call();
  } catch (const gpushm::error& failure) {
    outcome = gpushm::to_string(failure.code());
  } catch (const std::exception& other) {
    outcome = other.what();
  }
  std::cout << "child " << name << ": " << outcome << std::endl;
}

void try_api(gpushm::client& client, gpushm::segment& created, const std::string& name) {
  report("list", [&] { (void)client.list(); });
  report("open", [&] { (void)client.open(name); });
  report("try_open", [&] { (void)client.try_open(name); });
  report("stat", [&] { (void)client.stat(name); });
  report("create",
         [&] { (void)client.create(name + "-of-child", {.size_bytes = 4096, .device = "host"}); });
  report("publish", [&] { created.publish(); });
  report("remove", [&] { client.remove(name); });
  report("subscribe", [&] { (void)client.subscribe(); });
}

void wait_for_end_of_input() {
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

[[noreturn]] void run_child(bool forked,
                            gpushm::client& client,
                            gpushm::segment& created,
                            const std::string& name) {
  // The test's harness kills children with their group; this one must outlive its parent.
  ::setpgid(0, 0);
  std::cout << "child " << ::getpid() << std::endl;
  if (forked) {
    try_api(client, created, name);
  }
  std::cout << "child waits" << std::endl;
  wait_for_end_of_input();
  ::_exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv, argv + argc);
    const auto& name = arguments.at(2);
    const bool forked = arguments.at(3) == "fork";
    auto client = gpushm::client::connect({.socket_path = arguments.at(1)});
    auto created =
        client.create(name, {.size_bytes = gpushm_tests::round_size_bytes, .device = "host"});
    if (arguments.at(3) != "none") {
      const auto pid = forked ? gpushm_testing::quiet_fork()
                              : static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
      if (pid == 0) {
        run_child(forked, client, created, name);
      }
    }
    created.publish();
    std::cerr << "ready" << std::endl;
    while (true) {
      ::pause();
    }
  } catch (const std::exception& problem) {
    std::cerr << "fork_parent: " << problem.what() << '\n';
    return 1;
  }
}
