// SPDX-License-Identifier: Apache-2.0
// A process that hosts a broker and uses it as applications do.
//   guest_host PATH broker|file WHAT
// "broker" serves the socket PATH.sock, "file" exports a segment into PATH (and serves PATH.sock).
// Prints "ready", waits for a line on standard input, and then, depending on WHAT:
//   fork     forks a child that stays
//   exec     forks a child that executes cat
//   system   runs cat through system(3), which forks without handlers, on a thread
//   destroy  forks a child that destroys its copies of the objects and stays
//   use      forks a child that calls every function of its copies and prints the results
//   workers  forks four children that stay, as a data loader does, while threads of the host open
//            and close connections
// Prints "child PID" for each; children exit at the end of standard input. The host runs until it
// is killed.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gpushm/broker.hpp"
#include "gpushm/file_export.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/process/quiet_fork.hpp"

namespace {

struct guests {
  std::optional<gpushm::broker> broker;
  std::optional<gpushm::file_export> file;
  std::optional<gpushm::segment> segment;
};

void wait_for_end_of_input() {
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

void report(std::string_view name, const auto& call) {
  std::string outcome = "no error";
  try {
    call();
  } catch (const gpushm::error& failure) {
    outcome = gpushm::to_string(failure.code());
  }
  std::cout << "child " << name << ": " << outcome << std::endl;
}

void use(guests& in_child) {
  if (in_child.broker) {
    report("socket_path", [&] { (void)in_child.broker->socket_path(); });
    report("epoch", [&] { (void)in_child.broker->epoch(); });
    report("statistics", [&] { (void)in_child.broker->statistics(); });
  }
  if (in_child.file) {
    report("write", [&] { in_child.file->write(*in_child.segment); });
    report("list", [&] { (void)in_child.file->client().list(); });
  }
}

[[noreturn]] void run_child(guests& in_child, std::string_view action) {
  if (action == "exec") {
    std::cout << "child " << ::getpid() << std::endl;
    ::execlp("cat", "cat", nullptr);
    ::_exit(127);
  }
  if (action == "destroy") {
    in_child = {};
  } else if (action == "use") {
    use(in_child);
  }
  std::cout << "child " << ::getpid() << std::endl;
  wait_for_end_of_input();
  ::_exit(0);
}

void fork_child(guests& here, std::string_view action) {
  if (gpushm_testing::quiet_fork() == 0) {
    run_child(here, action);
  }
}

void connect_again_and_again(const std::string& socket, const std::atomic<bool>& stop) {
  while (!stop) {
    try {
      auto client = gpushm::client::connect({.socket_path = socket});
      auto created = client.create("worker/" + std::to_string(::gettid()),
                                   {.size_bytes = 4096, .device = "host"});
      created.publish();
    } catch (const gpushm::error& failure) {
      std::cerr << failure.what() << std::endl;
    }
  }
}

void fork_workers(guests& here, const std::string& socket) {
  std::atomic<bool> stop{false};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] { connect_again_and_again(socket, stop); });
  }
  for (int i = 0; i < 4; ++i) {
    if (::fork() == 0) {
      run_child(here, "fork");
    }
  }
  stop = true;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv, argv + argc);
    const std::string& path = arguments.at(1);
    const std::string& kind = arguments.at(3);
    guests here;
    if (arguments.at(2) == "broker") {
      here.broker = gpushm::broker::start({.socket_path = path + ".sock"});
    } else {
      here.file = gpushm::file_export::begin(path);
      here.segment =
          here.file->client().create("exported", {.size_bytes = 1 << 20, .device = "host"});
      here.segment->publish();
      here.file->write(*here.segment);
    }
    std::cout << "ready" << std::endl;
    std::string line;
    std::getline(std::cin, line);
    if (kind == "workers") {
      fork_workers(here, path + ".sock");
    } else if (kind == "system") {
      std::thread([] {
        // NOLINTNEXTLINE(cert-env33-c,concurrency-mt-unsafe): the case under test
        [[maybe_unused]] const int status = std::system("echo child $$; exec cat >/dev/null");
      }).detach();
    } else {
      fork_child(here, kind);
    }
    while (true) {
      ::pause();
    }
  } catch (const std::exception& problem) {
    std::cerr << "guest_host: " << problem.what() << '\n';
    return 1;
  }
}
