// SPDX-License-Identifier: Apache-2.0
// The program gpushm-keeper, with a program that stores descriptors and is killed. `keeper.hpp` has
// the protocol that both implement; systemd's own store is not run here.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "base/process/signals.hpp"
#include "tests/keeper/keeper_fixture.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace {

using gpushm_testing::child;
using gpushm_testing::eventually;
using gpushm_testing::exited;
using gpushm_testing::own_program;
using gpushm_testing::worker_of_keeper;
using gpushm_tests::patience;

class kept_program : public gpushm_tests::keeper_fixture {
 protected:
  child start(std::vector<std::string> options = {},
              unsigned open_files = 0,
              std::vector<std::string> arguments = {}) {
    std::vector<std::string> argv{own_program("gpushm-keeper"), "--socket", socket_};
    argv.insert(argv.end(), options.begin(), options.end());
    argv.insert(argv.end(), {"--", own_program("keeper_client")});
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return child::start({.argv = std::move(argv), .open_files = open_files});
  }

  /// Sends a datagram to the keeper's socket, as another process of this user.
  void notify(const std::string& text) const {
    const gpushm::base::unique_fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(&address.sun_path[0], socket_.data(), socket_.size());
    static_cast<void>(::sendto(socket.get(),
                               text.data(),
                               text.size(),
                               0,
                               reinterpret_cast<const sockaddr*>(&address),
                               sizeof(address)));
  }

  std::string socket_ = directory_ / "notify";
};

TEST_F(kept_program, finds_its_descriptors_after_sigkill) {
  child keeper = start();
  EXPECT_EQ(inherited(keeper), "inherited 0");
  EXPECT_EQ(command(keeper, "put one first"), "done");
  EXPECT_EQ(command(keeper, "put two second"), "done");
  EXPECT_EQ(command(keeper, "put two third"), "done");
  keeper.write("die\n");
  EXPECT_EQ(inherited(keeper), "inherited 3 one=first two=second two=third");
  EXPECT_EQ(command(keeper, "remove two"), "done");
  EXPECT_EQ(command(keeper, "remove unknown"), "done");
  keeper.write("exit 0\n");
  EXPECT_EQ(inherited(keeper), "inherited 1 one=first");
  keeper.write("die\n");
  EXPECT_EQ(inherited(keeper), "inherited 1 one=first");
}

/// As a connection of a member that the broker has dropped.
TEST_F(kept_program, is_not_kept_waiting_by_a_close_that_lingers) {
  child keeper = start();
  inherited(keeper);
  EXPECT_EQ(command(keeper, "put one first"), "done");
  const std::size_t before = descriptors(keeper);
  EXPECT_EQ(command(keeper, "put-trap trap"), "done");
  EXPECT_EQ(command(keeper, "put-trap trap"), "done");
  EXPECT_EQ(command(keeper, "remove trap"), "done");
  EXPECT_EQ(descriptors(keeper), before);
  keeper.write("die\n");
  EXPECT_EQ(inherited(keeper), "inherited 1 one=first");
}

TEST_F(kept_program, may_use_libsystemd) {
  child keeper = start({}, 0, {"systemd"});
  const std::string first = inherited(keeper);
  if (first == "failed: no libsystemd on this machine") {
    GTEST_SKIP() << "no libsystemd.so.0 on this machine";
  }
  EXPECT_EQ(first, "inherited 0");
  EXPECT_EQ(command(keeper, "systemd-put one first"), "done");
  EXPECT_EQ(command(keeper, "put two second"), "done");
  keeper.write("die\n");
  EXPECT_EQ(inherited(keeper), "inherited 2 one=first two=second");
}

TEST_F(kept_program, finds_a_closed_pipe) {
  child keeper = start();
  inherited(keeper);
  EXPECT_EQ(command(keeper, "closed-pipe hung-up"), "done");
  keeper.write("die\n");
  EXPECT_EQ(inherited(keeper), "inherited 1 hung-up=(not a file)");
}

TEST_F(kept_program, finds_thousands_with_names_longer_than_a_variable) {
  child keeper = start();
  inherited(keeper);
  EXPECT_EQ(command(keeper, "many 6000 a-name-as-long-as-these-are."), "done");
  for (int i = 0; i < 3; ++i) {
    keeper.write("die\n");
    EXPECT_EQ(inherited(keeper), "inherited 6000 all right");
  }
}

TEST_F(kept_program, uses_nearly_all_of_its_descriptor_limit) {
  child keeper = start({}, 256);
  inherited(keeper);
  EXPECT_EQ(command(keeper, "many 220 n."), "done");
  keeper.write("die\n");
  EXPECT_EQ(inherited(keeper), "inherited 220 all right");
  EXPECT_THAT(command(keeper, "many 20 more."), testing::HasSubstr("the most that it stores"));
  EXPECT_EQ(command(keeper, "remove n.7"), "done");
  keeper.write("die\n");
  EXPECT_EQ(inherited(keeper), "inherited 223 all right");
}

TEST_F(kept_program, is_refused_more_than_max_descriptors) {
  child keeper = start({"--max-descriptors", "3"});
  inherited(keeper);
  EXPECT_EQ(command(keeper, "many 3 n."), "done");
  EXPECT_THAT(
      command(keeper, "put n.3 4"),
      testing::AllOf(testing::StartsWith("error: store descriptors"),
                     testing::HasSubstr("the keeper has 3 descriptors, the most that it stores"),
                     testing::HasSubstr("--max-descriptors")));
  EXPECT_EQ(command(keeper, "remove n.0"), "done") << "the problem is reported once";
  EXPECT_EQ(command(keeper, "put n.4 4"), "done");
  // About one name, whatever could not be stored besides it.
  EXPECT_THAT(command(keeper, "confirm n.3"), testing::HasSubstr("has not stored n.3"));
  EXPECT_EQ(command(keeper, "put-unseen n.5 5"), "done");
  EXPECT_EQ(command(keeper, "confirm n.4"), "done");
  EXPECT_THAT(command(keeper, "confirm n.5"), testing::HasSubstr("has not stored n.5"));
  EXPECT_THAT(command(keeper, "remove n.5"), testing::HasSubstr("the most that it stores"));
}

TEST_F(kept_program, ends_with_its_keeper) {
  child keeper = start();
  inherited(keeper);
  EXPECT_EQ(command(keeper, "put one first"), "done");
  keeper.kill(SIGTERM);
  EXPECT_EQ(keeper.wait_exit(patience), exited(128 + SIGTERM));
  EXPECT_NE(::access(socket_.c_str(), F_OK), 0);
}

TEST_F(kept_program, is_replaced_after_sighup) {
  child keeper = start();
  inherited(keeper);
  EXPECT_EQ(command(keeper, "put one first"), "done");
  keeper.kill(SIGHUP);
  EXPECT_EQ(inherited(keeper), "inherited 1 one=first");
  EXPECT_TRUE(keeper.running());
}

TEST_F(kept_program, is_killed_if_it_ignores_sigterm) {
  child keeper = start({"--stop-timeout", "1"});
  inherited(keeper);
  EXPECT_EQ(command(keeper, "ignore-term"), "done");
  keeper.kill(SIGHUP);
  EXPECT_EQ(inherited(keeper), "inherited 0");
  EXPECT_EQ(command(keeper, "ignore-term"), "done");
  keeper.kill(SIGTERM);
  EXPECT_EQ(keeper.wait_exit(patience), exited(128 + SIGKILL));
}

/// The other one never reports, and so is not watched.
TEST_F(kept_program, is_replaced_once_it_no_longer_reports) {
  child keeper = start({"--watchdog", "1"});
  inherited(keeper);
  const std::string other_socket = directory_ / "other";
  child other = child::start({.argv = {own_program("gpushm-keeper"),
                                       "--watchdog=1",
                                       "--socket",
                                       other_socket,
                                       own_program("keeper_client")}});
  inherited(other);
  EXPECT_EQ(command(keeper, "put one first"), "done");
  for (int i = 0; i < 2; ++i) {
    keeper.write("report\n");  // it may be killed before it says "done"
    EXPECT_EQ(inherited(keeper), "inherited 1 one=first");
  }
  EXPECT_EQ(command(other, "put one first"), "done");
  other.write("die\n");
  EXPECT_EQ(inherited(other), "inherited 1 one=first") << "it had inherited nothing before";
}

TEST_F(kept_program, is_not_watched_by_a_keeper_without_watchdog) {
  ::setenv("WATCHDOG_USEC", "1000", 1);  // the keeper's own
  child keeper = start({"--watchdog", "0"});
  ::unsetenv("WATCHDOG_USEC");
  inherited(keeper);
  EXPECT_EQ(command(keeper, "report"), "error: this program is not watched");
}

TEST_F(kept_program, lives_on_when_both_processes_of_its_keeper_are_killed) {
  child keeper = start();
  inherited(keeper);
  kill_all_of(keeper);
  keeper.write("put one first\n");
  EXPECT_THAT(keeper.wait_for_line("done|error", patience),
              testing::AllOf(testing::HasSubstr("no keeper reads the notification socket"),
                             testing::HasSubstr("ECONNREFUSED")));
}

/// Each time one of the keeper's processes, at any time.
TEST_F(kept_program, loses_nothing_when_its_keeper_is_killed_again_and_again) {
  child keeper = start();
  inherited(keeper);
  EXPECT_EQ(command(keeper, "many 300 n."), "done");
  std::minstd_rand random(5);
  pid_t guard = keeper.pid();
  pid_t worker = worker_of_keeper(guard);
  for (int i = 0; i < 60; ++i) {
    const bool is_guard = random() % 2 == 0;
    const bool is_busy = random() % 2 == 0;
    if (is_busy) {
      keeper.write("rounds 300\n");
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 5'000));
    }
    gpushm::base::signal_process(is_guard ? guard : worker, SIGKILL);
    guard = is_guard ? worker : guard;
    worker = worker_of_keeper(guard, worker);
    if (is_busy) {
      EXPECT_EQ(keeper.wait_for_line("done|error", patience), "done");
    }
    if (i % 10 == 9) {
      keeper.write("die\n");
      EXPECT_EQ(inherited(keeper), "inherited 300 all right");
    }
  }
  gpushm::base::signal_process(guard, SIGTERM);
  const auto has_ended = [&] {
    return !gpushm_testing::process_is_alive(guard) && !gpushm_testing::process_is_alive(worker);
  };
  EXPECT_TRUE(eventually(has_ended, patience));
  EXPECT_NE(::access(socket_.c_str(), F_OK), 0);
}

TEST_F(kept_program, gets_a_request_to_end_from_a_keeper_whose_worker_was_killed) {
  for (int i = 0; i < 20; ++i) {
    child keeper = start();
    inherited(keeper);
    gpushm::base::signal_process(worker_of_keeper(keeper.pid()), SIGKILL);
    keeper.kill(i % 2 == 0 ? SIGTERM : SIGHUP);
    if (i % 2 != 0) {
      EXPECT_EQ(inherited(keeper), "inherited 0");
      keeper.kill(SIGTERM);
    }
    EXPECT_TRUE(keeper.wait_exit(patience).code.has_value());
  }
}

/// Without processes (RLIMIT_NPROC) the program cannot be started again at once; nothing is lost.
TEST_F(kept_program, is_started_later_if_no_process_can_be_created) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "needs root, for a uid with a limit of its own";
  }
  // No other run of this test has it: the limit counts all processes of a uid.
  const auto uid = static_cast<uid_t>(100'000 + ::getpid());
  ASSERT_EQ(::chown(directory_.path().c_str(), uid, uid), 0);
  child keeper = child::start({.argv = {"/bin/bash",
                                        "-c",
                                        "ulimit -u 3; exec \"$0\" \"$@\"",  // both, and the program
                                        own_program("gpushm-keeper"),
                                        "--socket",
                                        directory_ / "own/notify",
                                        "--",
                                        own_program("keeper_client")},
                               .uid = uid,
                               .gid = uid});
  inherited(keeper);
  EXPECT_EQ(command(keeper, "put one first"), "done");
  std::optional<child> other = child::start(
      {.argv = {"/bin/sh", "-c", "echo there; exec sleep 60"}, .uid = uid, .gid = uid});
  other->wait_for_line("there", patience);
  keeper.write("die\n");
  keeper.wait_for_line("fork", patience, gpushm_testing::stream::err);
  other.reset();
  EXPECT_EQ(inherited(keeper), "inherited 1 one=first");
}

TEST_F(kept_program, leaves_no_descriptor_in_a_keeper_that_is_killed) {
  child keeper = start();
  inherited(keeper);
  const std::size_t before = descriptors(keeper);
  std::minstd_rand random(7);
  pid_t worker = 0;
  for (int i = 0; i < 40; ++i) {
    worker = worker_of_keeper(keeper.pid(), worker);
    keeper.write("rounds 400\n");
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 4'000));
    gpushm::base::signal_process(worker, SIGKILL);
    EXPECT_EQ(keeper.wait_for_line("done|error", patience), "done");
  }
  EXPECT_EQ(descriptors(keeper), before);
}

TEST_F(kept_program, leaves_nothing_in_the_keeper) {
  child keeper = start();
  inherited(keeper);
  EXPECT_EQ(command(keeper, "rounds 100"), "done");
  const std::size_t before = descriptors(keeper);
  EXPECT_EQ(command(keeper, "rounds 20000"), "done");
  EXPECT_EQ(descriptors(keeper), before);
}

TEST_F(kept_program, is_started_again_and_again) {
  child keeper = start();
  inherited(keeper);
  EXPECT_EQ(command(keeper, "put one first"), "done");
  const std::size_t before = descriptors(keeper);
  for (int i = 0; i < 4; ++i) {
    keeper.write("die\n");
    EXPECT_EQ(inherited(keeper), "inherited 1 one=first");
  }
  EXPECT_EQ(descriptors(keeper), before);
}

TEST_F(kept_program, is_not_disturbed_by_random_notifications) {
  child keeper = start();
  inherited(keeper);
  EXPECT_EQ(command(keeper, "put one first"), "done");
  std::mt19937 random(11);
  for (int i = 0; i < 2'000; ++i) {
    std::string text(random() % 6'000, '\0');
    for (char& each : text) {
      each = static_cast<char>(random());
    }
    notify(text);
    notify("BARRIER=1");
    notify("FDSTORE=1");
    notify("");
  }
  keeper.write("die\n");
  EXPECT_EQ(inherited(keeper), "inherited 1 one=first");
}

TEST_F(kept_program, of_one_user_is_not_changed_by_another) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "needs root, to run a program as another user";
  }
  ASSERT_EQ(::chmod(directory_.path().c_str(), 0755), 0);
  child keeper = start();
  inherited(keeper);
  ASSERT_EQ(::chmod(socket_.c_str(), 0666), 0);
  EXPECT_EQ(command(keeper, "put one first"), "done");
  const pid_t other = ::fork();
  if (other == 0) {
    const bool is_other = ::setgid(65534) == 0 && ::setuid(65534) == 0;
    notify("FDSTOREREMOVE=1\nFDNAME=one");
    ::_exit(is_other ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  ASSERT_EQ(status, 0);
  keeper.write("die\n");
  EXPECT_EQ(inherited(keeper), "inherited 1 one=first");
}

TEST(keeper_program, explains_wrong_command_lines) {
  const auto error_of = [](std::vector<std::string> words) {
    words.insert(words.begin(), own_program("gpushm-keeper"));
    const auto result =
        gpushm_testing::run_program({.argv = std::move(words), .env = {{"RUNTIME_DIRECTORY", ""}}});
    EXPECT_EQ(result.status, exited(2));
    EXPECT_EQ(result.out, "");
    return result.err;
  };
  using testing::HasSubstr;
  EXPECT_THAT(error_of({}), HasSubstr("there is no program to start"));
  EXPECT_THAT(error_of({"--socket"}), HasSubstr("--socket"));
  EXPECT_THAT(error_of({"--sockets", "x", "true"}), HasSubstr("--sockets"));
  EXPECT_THAT(error_of({"--max-descriptors", "many", "true"}), HasSubstr("--max-descriptors"));
  EXPECT_THAT(error_of({"--max-descriptors", "0", "true"}), HasSubstr("--max-descriptors"));
  EXPECT_THAT(error_of({"--stop-timeout=-1", "true"}), HasSubstr("--stop-timeout"));
  EXPECT_THAT(error_of({"--watchdog=-1", "true"}), HasSubstr("--watchdog"));
  EXPECT_THAT(error_of({"--", "true"}), HasSubstr("--socket: required"));
}

TEST(keeper_program, passes_the_program_its_own_options) {
  const gpushm_testing::temp_dir directory;
  for (const std::vector<std::string>& mark : {std::vector<std::string>{}, {"--"}}) {
    std::vector<std::string> argv{own_program("gpushm-keeper"),
                                  "--socket=" + (directory / "notify")};
    argv.insert(argv.end(), mark.begin(), mark.end());
    argv.insert(argv.end(), {"/bin/sh", "-c", "echo $1; kill $PPID; sleep 20", "--", "--stay"});
    const auto result = gpushm_testing::run_program({.argv = std::move(argv)});
    EXPECT_EQ(result.out, "--stay\n");
    EXPECT_EQ(result.status, exited(128 + SIGTERM));
  }
}

TEST(keeper_program, passes_on_no_descriptor_of_its_starter) {
  const gpushm_testing::temp_dir directory;
  const auto result = gpushm_testing::run_program(
      {.argv = {
           "/bin/sh",
           "-c",
           "exec 9</dev/zero; exec \"$0\" --socket \"$1\" sh -c 'ls -l /proc/$$/fd; kill $PPID; "
           "sleep 20'",
           own_program("gpushm-keeper"),
           directory / "notify"}});
  EXPECT_THAT(result.out, testing::HasSubstr("pipe:"));
  EXPECT_THAT(result.out, testing::Not(testing::HasSubstr("/dev/zero")));
}

TEST(keeper_program, exits_if_the_program_cannot_be_executed) {
  const gpushm_testing::temp_dir directory;
  const auto result = gpushm_testing::run_program(
      {.argv = {
           own_program("gpushm-keeper"), "--socket", directory / "notify", "/no/such/program"}});
  EXPECT_EQ(result.status, exited(127));
  EXPECT_THAT(result.err, testing::HasSubstr("cannot execute /no/such/program: No such file"));
}

TEST(keeper_program, exits_with_the_status_of_nothing_to_bind) {
  const auto result = gpushm_testing::run_program(
      {.argv = {own_program("gpushm-keeper"), "--socket", "/no/such/directory/notify", "true"}});
  EXPECT_EQ(result.status, exited(1));
  EXPECT_THAT(result.err, testing::HasSubstr("bind"));
}

}  // namespace
