// SPDX-License-Identifier: Apache-2.0
// run-with-fake-gpus: creates fake GPUs, runs a command that uses the fake driver with them, and
// removes them.

#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string_view>

#include "base/process/signals.hpp"
#include "base/text/size_text.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"

namespace {

constexpr int usage_status = 2;
constexpr int setup_status = 125;

volatile sig_atomic_t child = 0;

extern "C" void forward(int number) {
  if (child > 0) {
    gpushm::base::signal_process(child, number);
  }
}

int usage() {
  std::fputs(
      "usage: run-with-fake-gpus [--gpus N] [--size BYTES] [--mig N] [--no-peer] [--no-rdma]\n"
      "                          [--no-rdma-vmm] -- command...\n"
      "Runs command with N fake GPUs (default 1) of BYTES each (default 256MiB), of which the "
      "first is\n"
      "split into MIG instances on request. Returns its status, or 128 plus the signal that killed "
      "it.\n",
      stderr);
  return usage_status;
}

int run(char** command, const gpushm::fake::fake_gpus& gpus) {
  gpus.set_environment();
  const pid_t parent = ::getpid();
  child = ::fork();
  if (child < 0) {
    std::perror("fork");
    return setup_status;
  }
  if (child == 0) {
    // The fake GPUs are removed when this program exits, so the command must not outlive it.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) {
      ::_exit(setup_status);
    }
    ::execvp(command[0], command);
    std::fprintf(stderr, "run-with-fake-gpus: %s: %s\n", command[0], std::strerror(errno));
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  child = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

int main(int argc, char** argv) {
  gpushm::fake::fake_gpus_options options;
  int at = 1;
  for (; at < argc && std::string_view(argv[at]) != "--"; ++at) {
    const std::string_view flag = argv[at];
    if (flag == "--no-peer") {
      options.peer = false;
      continue;
    }
    if (flag == "--no-rdma") {
      options.rdma = false;
      continue;
    }
    if (flag == "--no-rdma-vmm") {
      options.rdma_vmm = false;
      continue;
    }
    if (at + 1 >= argc) {
      return usage();
    }
    const std::string_view value = argv[++at];
    const auto number = gpushm::base::parse_size(value);
    if (!number) {
      return usage();
    }
    if (flag == "--gpus" && *number <= 64) {
      options.gpus = static_cast<int>(*number);
    } else if (flag == "--mig" && *number <= 7) {
      options.mig_instances = static_cast<int>(*number);
    } else if (flag == "--size" && *number != 0) {
      options.size_bytes = *number;
    } else {
      return usage();
    }
  }
  if (at + 1 >= argc) {
    return usage();
  }
  // In a private mount namespace the memory of the fake GPUs is freed when the last process in it
  // exits, even after SIGKILL. Where that is not permitted, fake_gpus uses plain directories.
  if (::unshare(CLONE_NEWNS) == 0) {
    ::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr);
  }
  struct sigaction action {};
  action.sa_handler = forward;
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    ::sigaction(number, &action, nullptr);
  }
  try {
    const gpushm::fake::fake_gpus gpus(options);
    return run(argv + at + 1, gpus);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "run-with-fake-gpus: %s\n", problem.what());
    return setup_status;
  }
}
