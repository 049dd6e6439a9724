// SPDX-License-Identifier: Apache-2.0
#include "apps/support/end_signal.hpp"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <utility>

namespace gpushm::app {

namespace {

// Read by the signal handler.
std::atomic<const char*> unfinished{nullptr};

void end_process(int number) {
  if (const char* path = unfinished.exchange(nullptr)) {
    ::unlink(path);
  }
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  ::sigaction(number, &action, nullptr);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, number);
  ::pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  ::raise(number);
  // Reached if this is PID 1 of its namespace: the kernel drops the signal.
  ::_exit(128 + number);
}

}  // namespace

void end_on_signals() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT, SIGXCPU, SIGXFSZ}) {
    struct sigaction action {};
    if (::sigaction(number, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) {
      continue;
    }
    action = {};
    action.sa_handler = end_process;
    sigemptyset(&action.sa_mask);
    ::sigaction(number, &action, nullptr);
  }
}

unfinished_file::unfinished_file(std::string path) : path_(std::move(path)) {
  unfinished.store(path_.c_str());
}

unfinished_file::~unfinished_file() {
  const char* expected = path_.c_str();
  unfinished.compare_exchange_strong(expected, nullptr);
}

}  // namespace gpushm::app
