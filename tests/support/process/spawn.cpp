// SPDX-License-Identifier: Apache-2.0
#include "tests/support/process/spawn.hpp"

#include <fcntl.h>
#include <grp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <map>
#include <string_view>

#include "base/files/syscall.hpp"
#include "tests/support/process/harness_error.hpp"
#include "tests/support/process/programs.hpp"

extern char** environ;

namespace gpushm_testing {
namespace {

using gpushm::base::errno_text;
using gpushm::base::unique_fd;

struct pipe_ends {
  unique_fd read;
  unique_fd write;
};

pipe_ends make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw harness_error("pipe2: " + errno_text(errno));
  }
  return {unique_fd(ends[0]), unique_fd(ends[1])};
}

std::vector<std::string> environment(const spawn_options& options) {
  std::map<std::string, std::string> values;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string_view::npos) {
      values[std::string(text.substr(0, equals))] = text.substr(equals + 1);
    }
  }
  for (const auto& [name, value] : options.env) {
    if (value.empty()) {
      values.erase(name);
    } else {
      values[name] = value;
    }
  }
  std::vector<std::string> lines;
  lines.reserve(values.size());
  for (const auto& [name, value] : values) {
    lines.push_back(name + "=" + value);
  }
  return lines;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (auto& text : strings) {
    result.push_back(text.data());
  }
  result.push_back(nullptr);
  return result;
}

/// Makes async-signal-safe calls only: runs between fork and exec.
[[noreturn]] void fail_in_child(const char* operation) {
  const char* reason = ::strerrordesc_np(errno);
  for (const char* part : {"cannot start the program: ", operation, ": ", reason, "\n"}) {
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, part, std::strlen(part));
  }
  ::_exit(127);
}

void enter_identity(const spawn_options& options) {
  if (options.gid != static_cast<gid_t>(-1) &&
      (::setgroups(0, nullptr) != 0 || ::setresgid(options.gid, options.gid, options.gid) != 0)) {
    fail_in_child("setresgid");
  }
  if (options.uid != static_cast<uid_t>(-1) &&
      ::setresuid(options.uid, options.uid, options.uid) != 0) {
    fail_in_child("setresuid");
  }
}

void reset_signals() {
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int number : {SIGPIPE, SIGINT, SIGTERM, SIGHUP}) {
    ::signal(number, SIG_DFL);  // NOLINT: restores defaults for the new program
  }
}

struct child_plan {
  const spawn_options& options;
  int in;
  int out;
  int err;
  pid_t parent;
  char* const* argv;
  char* const* env;
  const char* program;
};

[[noreturn]] void run_child(const child_plan& plan) {
  const auto& options = plan.options;
  if (::dup2(plan.in, STDIN_FILENO) < 0 || ::dup2(plan.out, STDOUT_FILENO) < 0 ||
      ::dup2(plan.err, STDERR_FILENO) < 0) {
    ::_exit(127);
  }
  ::setpgid(0, 0);
  reset_signals();
  if (options.open_files != 0) {
    const rlimit limit{options.open_files, options.open_files};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
      fail_in_child("setrlimit");
    }
  }
  if (!options.working_directory.empty() && ::chdir(options.working_directory.c_str()) != 0) {
    fail_in_child("chdir");
  }
  enter_identity(options);
  // After the change of identity, which clears it; the parent may have exited before it was set.
  if (options.dies_with_parent &&
      (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != plan.parent)) {
    ::_exit(127);
  }
  if (options.gate >= 0) {
    char byte = 0;
    if (gpushm::base::retry([&] { return ::read(options.gate, &byte, 1); }) != 1) {
      ::_exit(127);
    }
  }
  ::execve(plan.program, plan.argv, plan.env);
  fail_in_child(plan.program);
}

std::string resolve(const std::string& program) {
  if (program.find('/') != std::string::npos) {
    return program;
  }
  return find_in_path(program).value_or(program);
}

}  // namespace

spawned spawn(const spawn_options& options) {
  if (options.argv.empty()) {
    throw harness_error("spawn: no program given");
  }
  auto in = make_pipe();
  auto out = make_pipe();
  auto err = make_pipe();
  auto arguments = options.argv;
  auto variables = environment(options);
  const auto argv = pointers(arguments);
  const auto env = pointers(variables);
  const auto program = resolve(options.argv.front());
  const child_plan plan{options,
                        in.read.get(),
                        out.write.get(),
                        err.write.get(),
                        ::getpid(),
                        argv.data(),
                        env.data(),
                        program.c_str()};
  const pid_t pid = ::fork();
  if (pid < 0) {
    throw harness_error("fork: " + errno_text(errno));
  }
  if (pid == 0) {
    run_child(plan);
  }
  ::setpgid(pid, pid);  // in both processes, so that it is set whichever runs first
  for (const auto* end : {&in.write, &out.read, &err.read}) {
    ::fcntl(end->get(), F_SETFL, O_NONBLOCK);
  }
  return {pid, std::move(in.write), std::move(out.read), std::move(err.read)};
}

}  // namespace gpushm_testing
