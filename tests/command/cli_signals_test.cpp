// SPDX-License-Identifier: Apache-2.0
// Signals terminate a command, also as PID 1, and it leaves no partial file.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/files/sanitizers.hpp"
#include "base/process/signals.hpp"
#include "tests/support/broker_process/cli.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm_tests {
namespace {

namespace fs = std::filesystem;
using gpushm_testing::child;
using gpushm_testing::eventually;
using gpushm_testing::exited;
using gpushm_testing::killed_by;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class cli_signals : public ::testing::TestWithParam<int> {
 protected:
  cli_signals() { fs::create_directory(out_directory()); }

  [[nodiscard]] std::string out_directory() const { return cli_.directory() / "out"; }
  [[nodiscard]] std::vector<std::string> remaining() const {
    std::vector<std::string> names;
    for (const auto& each : fs::directory_iterator(out_directory())) {
      names.push_back(each.path().filename());
    }
    return names;
  }
  void create(const std::string& name, const std::string& size) const {
    const auto created = cli_.run({"create",
                                   name,
                                   "--size",
                                   size,
                                   "--fill",
                                   "7",
                                   "--device",
                                   "host",
                                   "--lifetime",
                                   "persistent"});
    ASSERT_EQ(created.status, exited(0)) << created.err;
  }

  cli cli_;
};

TEST_P(cli_signals, leave_no_partial_file) {
  const auto broker = cli_.serve();
  create("large", "256MiB");
  // Repeated if the copy is complete before the signal.
  for (int attempt = 0; attempt < 10; ++attempt) {
    auto copy = cli_.start({"open", "large", "--out", out_directory() + "/file"});
    ASSERT_TRUE(eventually([&] { return !remaining().empty(); }, seconds(30)));
    copy.kill(SIGSTOP);
    const bool unfinished = !remaining().empty() && remaining().front() != "file";
    copy.kill(GetParam());
    copy.kill(SIGCONT);
    const auto status = copy.wait_exit(seconds(30));
    if (unfinished && status == killed_by(GetParam())) {
      EXPECT_THAT(remaining(), IsEmpty());
      return;
    }
    fs::remove_all(out_directory());
    fs::create_directory(out_directory());
  }
  FAIL() << "no copy was interrupted";
}

TEST_P(cli_signals, held_copy_is_not_completed_after_signal) {
  const auto broker = cli_.serve();
  create("large", "256MiB");
  if (GetParam() == SIGPIPE) {
    GTEST_SKIP() << "no output to a pipe before the copy is complete";
  }
  for (int attempt = 0; attempt < 10; ++attempt) {
    auto copy = cli_.start({"open", "large", "--out", out_directory() + "/file", "--hold"});
    ASSERT_TRUE(eventually([&] { return !remaining().empty(); }, seconds(30)));
    copy.kill(SIGSTOP);
    const bool unfinished = !remaining().empty() && remaining().front() != "file";
    copy.kill(GetParam());
    copy.kill(SIGCONT);
    const auto status = copy.wait_exit(seconds(30));
    if (unfinished && status == exited(1)) {
      EXPECT_THAT(remaining(), IsEmpty());
      EXPECT_THAT(copy.output().all_output(),
                  ::testing::HasSubstr("interrupted by a signal before it was complete"));
      return;
    }
    fs::remove_all(out_directory());
    fs::create_directory(out_directory());
  }
  FAIL() << "no copy was interrupted";
}

INSTANTIATE_TEST_SUITE_P(all,
                         cli_signals,
                         ::testing::Values(SIGINT, SIGTERM, SIGHUP, SIGPIPE),
                         [](const auto& value) { return "signal_" + std::to_string(value.param); });

using cli_limits = cli_signals;

TEST_F(cli_limits, file_size_limit_leaves_no_partial_file) {
  const auto broker = cli_.serve();
  create("large", "4MiB");
  auto command = cli_.command({"open", "large", "--out", out_directory() + "/file"});
  command.argv.insert(command.argv.begin(), {"sh", "-c", "ulimit -f 1024 && exec \"$@\"", "sh"});
  auto copy = child::start(command);
  EXPECT_EQ(copy.wait_exit(seconds(30)), killed_by(SIGXFSZ));
  EXPECT_THAT(remaining(), IsEmpty());
}

// ---- PID 1 of a container ----

/// The only child of `parent`; 0 if it has none yet.
pid_t child_of(pid_t parent) {
  const std::string id = std::to_string(parent);
  std::ifstream file("/proc/" + id + "/task/" + id + "/children");
  pid_t pid = 0;
  file >> pid;
  return file ? pid : 0;
}

std::string program_of(pid_t pid) {
  std::error_code ignored;
  return fs::read_symlink("/proc/" + std::to_string(pid) + "/exe", ignored).filename();
}

bool handles(pid_t pid, int signal) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigCgt:")) {
      const std::uint64_t caught = std::stoull(line.substr(7), nullptr, 16);
      return ((caught >> static_cast<unsigned>(signal - 1)) & 1U) != 0;
    }
  }
  return false;
}

class cli_pid_1 : public cli_signals {};

TEST_P(cli_pid_1, waiting_commands_exit_immediately) {
  const std::vector<std::vector<std::string>> waiting{
      {"wait", "never", "--timeout", "300s"},
      {"open", "never", "--timeout", "300s"},
      {"create", "held", "--size", "4096", "--device", "host", "--hold"},
      {"import", "--file", out_directory() + "/never", "--timeout", "300s"},
      {"cdi", "watch", "--spec-dir", out_directory()}};
  const auto broker = cli_.serve();
  for (const auto& arguments : waiting) {
    auto command = cli_.command(arguments);
    std::vector<std::string> unshare{"unshare", "--pid", "--fork", "--kill-child"};
    if (::geteuid() != 0) {
      unshare.insert(unshare.end(), {"--user", "--map-root-user"});
    }
    command.argv.insert(command.argv.begin(), unshare.begin(), unshare.end());
    auto parent = child::start(command);
    pid_t pid_1 = 0;
    const bool started = eventually(
        [&] {
          pid_1 = child_of(parent.pid());
          return !parent.running() || (pid_1 != 0 && program_of(pid_1) == "gpushm");
        },
        seconds(20));
    if (!parent.running()) {
      GTEST_SKIP() << "cannot create PID namespaces: " << parent.output().all_output();
    }
    ASSERT_TRUE(started) << arguments.front();
    // The kernel drops signals that PID 1 does not handle, so a signal before `main` is lost.
    ASSERT_TRUE(eventually([&] { return handles(pid_1, GetParam()); }, seconds(20)))
        << arguments.front();
    gpushm::base::signal_process(pid_1, GetParam());
    if (gpushm::base::under_thread_sanitizer) {
      // ThreadSanitizer loses about one in a thousand signals during program start.
      static_cast<void>(eventually(
          [&] {
            gpushm::base::signal_process(pid_1, GetParam());
            return !parent.running();
          },
          seconds(10)));
    }
    EXPECT_NO_THROW(static_cast<void>(parent.wait_exit(seconds(10)))) << arguments.front();
  }
}

INSTANTIATE_TEST_SUITE_P(all, cli_pid_1, ::testing::Values(SIGTERM, SIGINT), [](const auto& value) {
  return "signal_" + std::to_string(value.param);
});

}  // namespace
}  // namespace gpushm_tests
