// SPDX-License-Identifier: Apache-2.0
// A program for the tests of the tracer: makes known system calls between the marks.
//   harness_victim plain | threads | fork

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>

#include "tests/support/ptrace/marker.hpp"

namespace {

void five_calls() {
  ::syscall(SYS_getppid);
  ::syscall(SYS_getuid);
  ::syscall(SYS_geteuid);
  ::syscall(SYS_getgid);
  ::syscall(SYS_getegid);
}

/// Forks a child, without running atfork handlers, that lives until its standard input ends.
void leave_child() {
  if (::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0) {
    char byte = 0;
    while (::read(STDIN_FILENO, &byte, 1) > 0) {
    }
    ::_exit(0);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const char* mode = argc > 1 ? argv[1] : "plain";
  gpushm_testing::mark_begin();
  if (std::strcmp(mode, "threads") == 0) {
    std::jthread other(five_calls);
  } else if (std::strcmp(mode, "fork") == 0) {
    leave_child();
  }
  five_calls();
  gpushm_testing::mark_end();
  std::puts("done");
  return 0;
}
