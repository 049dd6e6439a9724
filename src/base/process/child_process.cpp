// SPDX-License-Identifier: Apache-2.0
#include "base/process/child_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/files/fork_guard.hpp"
#include "base/files/syscall.hpp"
#include "base/process/signals.hpp"

namespace gpushm::base {

namespace {

constexpr std::string_view operation = "start process";

struct pipe_ends {
  base::unique_fd read;
  base::unique_fd write;
};

pipe_ends make_pipe(std::string_view object) {
  std::array<int, 2> ends{};
  base::checked(operation, object, "pipe2", [&] { return ::pipe2(ends.data(), O_CLOEXEC); });
  return {base::unique_fd(ends[0]), base::unique_fd(ends[1])};
}

std::vector<std::string> merged_environment(
    const std::vector<std::pair<std::string, std::string>>& added) {
  std::vector<std::string> environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const bool replaced = std::any_of(added.begin(), added.end(), [&](const auto& pair) {
      return text.substr(0, text.find('=')) == pair.first;
    });
    if (!replaced) {
      environment.emplace_back(text);
    }
  }
  for (const auto& [name, value] : added) {
    std::string& entry = environment.emplace_back(name);
    entry += '=';
    entry += value;
  }
  return environment;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (std::string& text : texts) {
    result.push_back(text.data());
  }
  result.push_back(nullptr);
  return result;
}

base::unique_fd open_pidfd(pid_t pid) {
  return base::unique_fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

void require_pidfd(const base::unique_fd& pidfd, std::string_view object) {
  if (!pidfd) {
    throw error(
        errc::system_error, operation, object, "pidfd_open failed", "use Linux 5.3 or newer");
  }
}

/// In the child. Only async-signal-safe functions: the parent may have threads.
void prepare_child(pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(127);
  }
}

int timeout_ms(deadline until) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000'000));
}

}  // namespace

child_process child_process::start(const child_options& options) {
  const std::string& program = options.argv.at(0);
  std::vector<std::string> arguments = options.argv;
  std::vector<std::string> environment = merged_environment(options.environment);
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> envp = pointers(environment);
  pipe_ends in = make_pipe(program);
  pipe_ends out = make_pipe(program);
  pipe_ends failure = make_pipe(program);
  const pid_t parent = ::getpid();

  const pid_t pid = base::checked(operation, program, "fork", [] { return ::fork(); });
  if (pid == 0) {
    prepare_child(parent);
    ::dup2(in.read.get(), STDIN_FILENO);
    ::dup2(out.write.get(), STDOUT_FILENO);
    if (options.merge_stderr) {
      ::dup2(out.write.get(), STDERR_FILENO);
    }
    // Another thread of the parent may have opened some without O_CLOEXEC (std::ofstream does).
    close_others_at_exec();
    // The parent may ignore SIGPIPE; programs expect the default.
    ::signal(SIGPIPE, SIG_DFL);
    ::execve(argv[0], argv.data(), envp.data());
    const int number = errno;
    [[maybe_unused]] const auto sent = ::write(failure.write.get(), &number, sizeof number);
    ::_exit(127);
  }
  ::setpgid(pid, pid);
  child_process child(pid, open_pidfd(pid), std::move(in.write), std::move(out.read));
  child.cancel_fd_ = options.cancel_fd;
  failure.write.reset();
  int number = 0;
  if (base::retry([&] { return ::read(failure.read.get(), &number, sizeof number); }) ==
      sizeof number) {
    base::throw_errno(number, operation, program, "execve");
  }
  require_pidfd(child.pidfd_, program);
  return child;
}

child_process child_process::fork(const std::function<void(int output)>& work) {
  pipe_ends out = make_pipe({});
  const pid_t parent = ::getpid();
  const pid_t pid = base::checked(operation, {}, "fork", [] { return ::fork(); });
  if (pid == 0) {
    prepare_child(parent);
    try {
      work(out.write.get());
    } catch (...) {
      ::_exit(1);
    }
    // Not exit: it would flush the parent's buffers and run its handlers.
    ::_exit(0);
  }
  ::setpgid(pid, pid);
  child_process child(pid, open_pidfd(pid), {}, std::move(out.read));
  require_pidfd(child.pidfd_, {});
  return child;
}

child_process::child_process(pid_t pid,
                             base::unique_fd pidfd,
                             base::unique_fd input,
                             base::unique_fd output)
    : pid_(pid), pidfd_(std::move(pidfd)), input_(std::move(input)), output_(std::move(output)) {}

child_process::child_process(child_process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::move(other.pidfd_)),
      input_(std::move(other.input_)),
      output_(std::move(other.output_)),
      cancel_fd_(other.cancel_fd_),
      buffer_(std::move(other.buffer_)) {}

child_process& child_process::operator=(child_process&& other) noexcept {
  if (this != &other) {
    stop();
    pid_ = std::exchange(other.pid_, -1);
    pidfd_ = std::move(other.pidfd_);
    input_ = std::move(other.input_);
    output_ = std::move(other.output_);
    cancel_fd_ = other.cancel_fd_;
    buffer_ = std::move(other.buffer_);
  }
  return *this;
}

child_process::~child_process() {
  stop();
}

void child_process::stop() noexcept {
  if (pid_ > 0) {
    kill(SIGKILL);
    int status = 0;
    base::retry([&] { return ::waitpid(pid_, &status, 0); });
    pid_ = -1;
  }
}

void child_process::write_line(std::string_view line) {
  const std::string text = std::string(line) + "\n";
  // Programs that use this ignore SIGPIPE, so a dead child is an error and does not kill them.
  const auto count = base::retry([&] { return ::write(input_.get(), text.data(), text.size()); });
  if (count != static_cast<ssize_t>(text.size())) {
    throw error(
        errc::peer_died, "write to process", std::to_string(pid_), "its standard input is closed");
  }
}

bool child_process::wait_readable(int fd, deadline until) const {
  for (;;) {
    std::array<pollfd, 2> waiting{{{fd, POLLIN, 0}, {cancel_fd_, POLLIN, 0}}};
    const int count = ::poll(waiting.data(), waiting.size(), timeout_ms(until));
    if (waiting[1].revents != 0 && count > 0) {
      throw error(
          errc::timed_out, "wait for process", std::to_string(pid_), "interrupted by a signal");
    }
    if (count > 0) {
      return true;
    }
    if (count == 0 && std::chrono::steady_clock::now() >= until) {
      return false;
    }
  }
}

bool child_process::wait_output(deadline until) const {
  return buffer_.find('\n') != std::string::npos || wait_readable(output_.get(), until);
}

bool child_process::alive() const {
  pollfd ended{pidfd_.get(), POLLIN, 0};
  return pid_ > 0 && ::poll(&ended, 1, 0) == 0;
}

std::optional<std::string> child_process::read_line(deadline until) {
  for (;;) {
    const std::size_t end = buffer_.find('\n');
    if (end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    if (!wait_readable(output_.get(), until)) {
      throw error(errc::timed_out,
                  "wait for process",
                  std::to_string(pid_),
                  "no output before the deadline");
    }
    std::array<char, 4096> block{};
    const auto count =
        base::retry([&] { return ::read(output_.get(), block.data(), block.size()); });
    if (count <= 0) {
      return std::nullopt;
    }
    buffer_.append(block.data(), static_cast<std::size_t>(count));
  }
}

bool child_process::read_all(std::string& text, deadline until) {
  text += std::exchange(buffer_, {});
  std::array<char, 65'536> block{};
  while (wait_readable(output_.get(), until)) {
    const auto count =
        base::retry([&] { return ::read(output_.get(), block.data(), block.size()); });
    if (count <= 0) {
      return true;
    }
    text.append(block.data(), static_cast<std::size_t>(count));
  }
  return false;
}

std::optional<int> child_process::wait(deadline until) {
  if (!wait_readable(pidfd_.get(), until)) {
    return std::nullopt;
  }
  // Kills the rest of its process group, before reaping the child frees the group's number.
  base::signal_group(pid_, SIGKILL);
  int status = 0;
  base::checked("wait for process", std::to_string(pid_), "waitpid", [&] {
    return ::waitpid(pid_, &status, 0);
  });
  pid_ = -1;
  return status;
}

void child_process::kill(int signal_number) noexcept {
  if (pid_ > 0) {
    base::signal_group(pid_, signal_number);
  }
}

std::string status_text(int wait_status) {
  if (WIFEXITED(wait_status)) {
    return "exit status " + std::to_string(WEXITSTATUS(wait_status));
  }
  const int number = WTERMSIG(wait_status);
  const char* name = ::sigdescr_np(number);
  return "killed by signal " + std::to_string(number) + " (" + (name == nullptr ? "?" : name) + ")";
}

std::string executable_path() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

}  // namespace gpushm::base
