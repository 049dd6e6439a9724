// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/segment/detached.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>

#include "apps/gpushm/exit_status.hpp"
#include "base/files/syscall.hpp"

namespace gpushm::cli {

namespace {

constexpr const char* operation = "detach";
/// The first descriptor that is not a standard stream.
constexpr int first_other = 3;

/// Returns the exit status of a child that has not become ready.
int status_of(pid_t child) {
  int status = 0;
  base::checked(operation, {}, "waitpid", [&] { return ::waitpid(child, &status, 0); });
  constexpr int signalled = 128;  // as a shell reports it
  return WIFEXITED(status) ? WEXITSTATUS(status) : signalled + WTERMSIG(status);
}

}  // namespace

detached::detached() {
  std::array<int, 2> ends{};
  base::checked(operation, {}, "pipe", [&] { return ::pipe2(ends.data(), O_CLOEXEC); });
  const base::unique_fd from_child(ends[0]);
  pipe_ = base::unique_fd(ends[1]);
  const pid_t child = base::checked(operation, {}, "fork", [] { return ::fork(); });
  if (child == 0) {
    ::setsid();
    nothing_ = base::unique_fd(base::checked(
        operation, "/dev/null", "open", [] { return ::open("/dev/null", O_RDWR | O_CLOEXEC); }));
    for (int number = 0; number < first_other; ++number) {  // -1: it was closed
      callers_.at(static_cast<std::size_t>(number)) =
          base::unique_fd(::fcntl(number, F_DUPFD_CLOEXEC, first_other));
    }
    hide_messages();
    return;
  }
  pipe_.reset();
  char byte = 0;
  const auto got = base::retry([&] { return ::read(from_child.get(), &byte, 1); });
  parent_status_ = got == 1 ? exit_ok : status_of(child);
}

detached::~detached() {
  show_messages();
}

void detached::show_messages() {
  for (int number = 0; number < first_other; ++number) {
    if (const auto& from = callers_.at(static_cast<std::size_t>(number)); from.get() >= 0) {
      static_cast<void>(base::retry([&] { return ::dup2(from.get(), number); }));
    }
  }
}

void detached::hide_messages() {
  struct stat log {};
  const bool has_log_file = ::fstat(STDERR_FILENO, &log) == 0 && S_ISREG(log.st_mode);
  for (int number = 0; number < first_other; ++number) {
    if (number != STDERR_FILENO || !has_log_file) {
      base::checked(operation, {}, "dup2", [&] { return ::dup2(nothing_.get(), number); });
    }
  }
}

void detached::ready() {
  hide_messages();
  callers_ = {};
  const char byte = '\n';
  static_cast<void>(base::retry([&] { return ::write(pipe_.get(), &byte, 1); }));
  pipe_.reset();
}

}  // namespace gpushm::cli
