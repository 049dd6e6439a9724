// SPDX-License-Identifier: Apache-2.0
#include "apps/support/oci/cleanup_guard.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <utility>

#include "apps/support/temp_directory.hpp"
#include "base/files/syscall.hpp"
#include "base/report/log.hpp"

namespace gpushm::app::oci {

namespace {

constexpr std::string_view operation = "start cleanup guard";

// Input: the directory, then "now" to clean up immediately. End of input means that the guarded
// process is dead. A runtime that dies with it may take some time, longer on a busy machine, and
// meanwhile create processes and cgroups, so the script retries until nothing is left.
constexpr const char* script =
    "trap '' INT TERM HUP\n"
    "id=$1\n"
    "shift\n"
    "read -r directory || exit 0\n"
    "read -r word || sleep 1\n"
    "for pause in 0.1 0.2 0.5 1 2 4; do\n"
    "  [ $# = 0 ] || \"$@\" --root \"$directory/state\" delete --force \"$id\"\n"
    "  rm -rf --one-file-system -- \"$directory\"\n"
    "  again=\n"
    "  for left in ${id:+/sys/fs/cgroup/\"$id\" /sys/fs/cgroup/*/\"$id\"}; do\n"
    "    [ ! -d \"$left\" ] || rmdir \"$left\" || again=yes\n"
    "  done\n"
    "  [ -e \"$directory\" ] || [ -n \"$again\" ] || exit 0\n"
    "  sleep $pause\n"
    "done\n";

class spawn_settings {
 public:
  explicit spawn_settings(int input) {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
    // Discard its output.
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    ::posix_spawnattr_init(&attributes);
    // Detached from the terminal, so that its signals do not reach the guard.
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  }
  spawn_settings(const spawn_settings&) = delete;
  spawn_settings& operator=(const spawn_settings&) = delete;
  ~spawn_settings() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }

  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};
};

/// Ignores errors: programs that use this ignore SIGPIPE, and `finish` detects a dead guard.
void send_line(const base::unique_fd& input, const std::string& text) noexcept {
  const std::string line = text + "\n";
  [[maybe_unused]] const auto written = ::write(input.get(), line.data(), line.size());
}

bool wait_ended(pid_t pid, int timeout_ms) {
  const base::unique_fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd ended{pidfd.get(), POLLIN, 0};
  return base::retry([&] { return ::poll(&ended, 1, timeout_ms); }) == 1;
}

}  // namespace

cleanup_guard::cleanup_guard(const std::vector<std::string>& runtime, const std::string& id) {
  std::array<int, 2> ends{};
  base::checked(operation, {}, "pipe2", [&] { return ::pipe2(ends.data(), O_CLOEXEC); });
  const base::unique_fd read_end(ends[0]);
  input_ = base::unique_fd(ends[1]);
  std::vector<std::string> arguments{"/bin/sh", "-c", script, "cleanup", id};
  arguments.insert(arguments.end(), runtime.begin(), runtime.end());
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) {
    argv.push_back(argument.data());
  }
  argv.push_back(nullptr);
  const spawn_settings settings(read_end.get());
  const int failed =
      ::posix_spawn(&pid_, argv[0], &settings.actions, &settings.attributes, argv.data(), environ);
  if (failed != 0) {
    pid_ = -1;
    base::throw_errno(failed, operation, arguments[0], "posix_spawn");
  }
}

cleanup_guard::cleanup_guard(std::string_view prefix,
                             const std::vector<std::string>& runtime,
                             const std::string& id)
    : cleanup_guard(runtime, id) {
  // The guard already runs: if this process dies between these two lines, only an empty directory
  // is left.
  directory_ = make_temp_directory(prefix);
  send_line(input_, directory_);
}

cleanup_guard::cleanup_guard(cleanup_guard&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      input_(std::move(other.input_)),
      directory_(std::move(other.directory_)) {}

cleanup_guard::~cleanup_guard() {
  finish();
}

void cleanup_guard::finish() noexcept {
  const pid_t pid = std::exchange(pid_, -1);
  if (pid <= 0) {
    return;
  }
  if (!directory_.empty()) {
    send_line(input_, "now");
  }
  input_.reset();
  if (!wait_ended(pid, 10'000)) {
    base::log(log_level::warning,
              fmt::format("process {} is still cleaning up after a container", pid));
    return;
  }
  int status = 0;
  base::retry([&] { return ::waitpid(pid, &status, 0); });
}

}  // namespace gpushm::app::oci
