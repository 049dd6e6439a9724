// SPDX-License-Identifier: Apache-2.0
#include "tests/support/process/child.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "base/files/syscall.hpp"
#include "base/process/signals.hpp"
#include "tests/support/process/harness_error.hpp"

namespace gpushm_testing {

using gpushm::base::retry;
using gpushm::base::unique_fd;

std::string exit_status::text() const {
  return code ? "exit status " + std::to_string(*code)
              : "killed by signal " + std::to_string(signal.value_or(0));
}

exit_status exit_status_of(int wait_status) {
  return WIFEXITED(wait_status) ? exited(WEXITSTATUS(wait_status))
                                : killed_by(WTERMSIG(wait_status));
}

child child::start(const spawn_options& options) {
  return child(spawn(options));
}

child::child(spawned process)
    : pid_(process.pid),
      pidfd_(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0))),
      in_(std::move(process.in)),
      output_(std::move(process.out), std::move(process.err)) {
  ::signal(SIGPIPE, SIG_IGN);  // NOLINT: a child that does not read must not kill the test
}

child::child(child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::move(other.pidfd_)),
      in_(std::move(other.in_)),
      output_(std::move(other.output_)),
      status_(std::exchange(other.status_, std::nullopt)) {}

child& child::operator=(child&& other) noexcept {
  if (this != &other) {
    stop();
    pid_ = std::exchange(other.pid_, -1);
    pidfd_ = std::move(other.pidfd_);
    in_ = std::move(other.in_);
    output_ = std::move(other.output_);
    status_ = std::exchange(other.status_, std::nullopt);
  }
  return *this;
}

child::~child() {
  stop();
}

void child::stop() noexcept {
  if (pid_ > 0) {
    // Also its own children; the group outlives its leader.
    gpushm::base::signal_group(pid_, SIGKILL);
    if (!status_) {
      gpushm::base::signal_process(pid_, SIGKILL);
      reap(true);
    }
    pid_ = -1;
  }
}

bool child::reap(bool block) {
  if (!status_ && pid_ > 0) {
    int raw = 0;
    if (retry([&] { return ::waitpid(pid_, &raw, block ? 0 : WNOHANG); }) == pid_) {
      status_ = exit_status_of(raw);
    }
  }
  return status_.has_value();
}

void child::write(std::string_view text) {
  const auto deadline = deadline_after(std::chrono::seconds(5));
  while (!text.empty()) {
    const auto count = retry([&] { return ::write(in_.get(), text.data(), text.size()); });
    if (count >= 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
      continue;
    }
    pollfd wait{in_.get(), POLLOUT, 0};
    if (errno != EAGAIN || clock::now() >= deadline) {
      throw harness_error("cannot write to the child: " + gpushm::base::errno_text(errno) + "\n" +
                          output_.all_output());
    }
    retry([&] { return ::poll(&wait, 1, milliseconds_until(deadline)); });
  }
}

exit_status child::wait_exit(std::chrono::milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  // Output is read meanwhile: a full pipe would block the child.
  bool open = true;
  while (!reap(false)) {
    if (clock::now() >= deadline) {
      throw harness_error("process " + std::to_string(pid_) + " did not exit in time\n" +
                          output_.all_output());
    }
    if (open) {
      open = output_.read_some(std::min(deadline, clock::now() + std::chrono::milliseconds(20)));
    } else {
      pollfd wait{pidfd_.get(), POLLIN, 0};
      retry([&] { return ::poll(&wait, 1, milliseconds_until(deadline)); });
    }
  }
  output_.read_to_end(clock::now() + std::chrono::milliseconds(200));
  return *status_;
}

bool child::running() {
  return pid_ > 0 && !reap(false);
}

void child::kill(int signal_number) {
  if (running()) {
    gpushm::base::signal_process(pid_, signal_number);
  }
}

run_result run_program(const spawn_options& options, std::chrono::milliseconds timeout) {
  auto process = child::start(options);
  process.close_stdin();
  const auto status = process.wait_exit(timeout);
  return {status, process.text(stream::out), process.text(stream::err)};
}

}  // namespace gpushm_testing
