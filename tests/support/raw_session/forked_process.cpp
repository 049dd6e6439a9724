// SPDX-License-Identifier: Apache-2.0
#include "tests/support/raw_session/forked_process.hpp"

#include <grp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "base/files/syscall.hpp"
#include "base/process/signals.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/transport/principal.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/harness_error.hpp"

namespace gpushm_testing {
namespace {

using gpushm::base::checked;
using gpushm::base::retry;
using gpushm::base::unique_fd;

void close_all_but(int kept) {
  std::vector<int> others;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int number = std::stoi(entry.path().filename().string());
    if (number > STDERR_FILENO && number != kept) {
      others.push_back(number);
    }
  }
  for (const int number : others) {
    ::close(number);
  }
}

void become(const forked_options& options, pid_t parent) {
  if (!options.cores.empty()) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (const auto core : options.cores) {
      CPU_SET(core, &cores);
    }
    checked("child", {}, "sched_setaffinity", [&] {
      return ::sched_setaffinity(0, sizeof cores, &cores);
    });
  }
  if (options.niceness != 0) {
    checked("child", {}, "setpriority", [&] {
      return ::setpriority(PRIO_PROCESS, 0, options.niceness);
    });
  }
  if (options.open_files != 0) {
    const rlimit limit{options.open_files, options.open_files};
    checked("child", {}, "setrlimit", [&] { return ::setrlimit(RLIMIT_NOFILE, &limit); });
  }
  if (options.uid != static_cast<uid_t>(-1)) {
    const auto uid = options.uid;
    checked("child", {}, "setgroups", [] { return ::setgroups(0, nullptr); });
    checked("child", {}, "setresgid", [&] { return ::setresgid(uid, uid, uid); });
    checked("child", {}, "setresuid", [&] { return ::setresuid(uid, uid, uid); });
  }
  // After the change of identity, which clears it; the parent may have exited before it was set.
  checked("child", {}, "prctl", [] { return ::prctl(PR_SET_PDEATHSIG, SIGKILL); });
  if (::getppid() != parent) {
    ::_exit(1);
  }
}

}  // namespace

void forked_process::parent_link::send_line(std::string_view line) const {
  retry([&] { return ::send(socket_, line.data(), line.size(), MSG_NOSIGNAL); });
}

void forked_process::parent_link::wait_for_go() const {
  char byte = 0;
  if (retry([&] { return ::recv(socket_, &byte, 1, 0); }) != 1) {
    ::_exit(1);
  }
}

forked_process::forked_process(pid_t pid, unique_fd socket) noexcept
    : pid_(pid), socket_(std::move(socket)) {}

forked_process::forked_process(forked_process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), socket_(std::move(other.socket_)) {}

forked_process::~forked_process() {
  stop();
}

forked_process forked_process::start(const forked_options& options,
                                     const std::function<void(parent_link&)>& body) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw harness_error("socketpair: " + gpushm::base::errno_text(errno));
  }
  unique_fd parent_end(ends[0]);
  unique_fd child_end(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    throw harness_error("fork: " + gpushm::base::errno_text(errno));
  }
  if (pid == 0) {
    int status = 1;
    try {
      ::setpgid(0, 0);
      close_all_but(child_end.get());
      become(options, parent);
      parent_link link(child_end.get());
      body(link);
      status = 0;
    } catch (const std::exception& problem) {
      std::fprintf(stderr, "forked process: %s\n", problem.what());
    }
    ::_exit(status);
  }
  ::setpgid(pid, pid);  // in both processes, so that it is set whichever runs first
  return {pid, std::move(parent_end)};
}

std::string forked_process::wait_line(std::chrono::milliseconds timeout) {
  if (!gpushm::transport::wait_readable(socket_.get(), wait_limit(timeout))) {
    throw harness_error("a forked process sent no line in time");
  }
  std::array<char, 512> line{};
  const auto size = retry([&] { return ::recv(socket_.get(), line.data(), line.size(), 0); });
  if (size <= 0) {
    throw harness_error("a forked process exited before it sent the expected line");
  }
  return {line.data(), static_cast<std::size_t>(size)};
}

void forked_process::go() const {
  retry([&] { return ::send(socket_.get(), "g", 1, MSG_NOSIGNAL); });
}

void forked_process::kill() const {
  gpushm::base::signal_process(pid_, SIGKILL);
}

void forked_process::stop() noexcept {
  if (pid_ > 0) {
    gpushm::base::signal_group(pid_, SIGKILL);
    int status = 0;
    retry([&] { return ::waitpid(pid_, &status, 0); });
    pid_ = -1;
  }
}

std::optional<std::string> one_tenant_here() {
  std::ifstream file("/proc/self/cgroup");
  std::ostringstream text;
  text << file.rdbuf();
  return gpushm::transport::tenant_of_cgroups(text.str());
}

void sleep_for(std::chrono::nanoseconds duration) noexcept {
  std::this_thread::sleep_for(duration);
}

}  // namespace gpushm_testing
