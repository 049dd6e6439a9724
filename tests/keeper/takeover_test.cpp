// SPDX-License-Identifier: Apache-2.0
// Keepers that take over from each other, and those that fail to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/guarded_fd.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "tests/keeper/keeper_fixture.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/programs.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm_testing::child;
using gpushm_testing::exited;
using gpushm_testing::killed_by;
using gpushm_testing::own_program;
using gpushm_testing::stream;
using gpushm_tests::patience;

class keepers : public gpushm_tests::keeper_fixture {
 protected:
  /// Each with a notification socket of its own.
  child start(std::vector<std::string> options = {}, std::vector<std::string> program = {}) {
    std::vector<std::string> argv{own_program("gpushm-keeper"),
                                  "--socket",
                                  directory_ / ("notify-" + std::to_string(started_++)),
                                  "--takeover",
                                  takeover_,
                                  "--takeover-pause",
                                  pause_};
    argv.insert(argv.end(), options.begin(), options.end());
    argv.emplace_back("--");
    if (program.empty() || program[0].front() != '/') {
      argv.push_back(own_program("keeper_client"));
    }
    argv.insert(argv.end(), program.begin(), program.end());
    return child::start({.argv = std::move(argv)});
  }
  /// With two descriptors.
  child start_first() {
    child first = start();
    EXPECT_EQ(inherited(first), "inherited 0");
    EXPECT_EQ(command(first, "put one first"), "done");
    EXPECT_EQ(command(first, "put two second"), "done");
    return first;
  }
  /// It has everything, and another keeper can take over from it.
  void expect_continues(child& keeper) {
    EXPECT_EQ(inherited(keeper), both);
    EXPECT_EQ(command(keeper, "put three third"), "done");
    EXPECT_EQ(command(keeper, "remove three"), "done");
    child next = start();
    EXPECT_EQ(inherited(next), both);
    EXPECT_EQ(keeper.wait_exit(patience), exited(0));
  }

  static constexpr const char* both = "inherited 2 one=first two=second";
  std::string takeover_ = directory_ / "takeover";
  std::string pause_ = "0";  ///< --takeover-pause
  int started_ = 0;
};

TEST_F(keepers, take_over_one_after_another) {
  child before = start_first();
  std::size_t count = 0;
  for (int i = 0; i < 4; ++i) {
    child next = start();
    EXPECT_EQ(inherited(next), both);
    EXPECT_EQ(before.wait_exit(patience), exited(0));
    next.write("die\n");
    EXPECT_EQ(inherited(next), both) << "after a takeover a program is started again as before";
    EXPECT_EQ(command(next, "put three third"), "done");
    EXPECT_EQ(command(next, "remove three"), "done");
    const std::size_t now = descriptors(next);
    EXPECT_TRUE(i == 0 || now == count);
    count = now;
    before = std::move(next);
  }
}

/// GPU memory is a driver file: those that a forked child inherits are replaced by /dev/null,
/// unless they are meant for it.
TEST_F(keepers, keep_driver_files) {
  const std::string path = directory_ / "nvidia-test";
  if (::mknod(path.c_str(), S_IFCHR | 0600, makedev(1, 3)) != 0) {
    GTEST_SKIP() << "device nodes cannot be created here (root, nodev)";
  }
  child first = start();
  inherited(first);
  EXPECT_EQ(command(first, "put-file memory " + path), "done");
  first.write("die\n");
  EXPECT_EQ(inherited(first), "inherited 1 memory=(a driver file)");
  child second = start();
  EXPECT_EQ(inherited(second), "inherited 1 memory=(a driver file)");
  second.write("die\n");
  EXPECT_EQ(inherited(second), "inherited 1 memory=(a driver file)");
}

TEST_F(keepers, take_thousands_over) {
  child first = start();
  inherited(first);
  EXPECT_EQ(command(first, "many 6000 a-name-as-long-as-these-are."), "done");
  child second = start();
  EXPECT_EQ(inherited(second), "inherited 6000 all right");
  EXPECT_EQ(first.wait_exit(patience), exited(0));
}

TEST_F(keepers, wait_for_sigterm_if_they_stay) {
  child first = start({"--stay"});
  inherited(first);
  EXPECT_EQ(command(first, "put one first"), "done");
  child second = start({"--stay"});
  EXPECT_EQ(inherited(second), "inherited 1 one=first");
  first.wait_for_line("the other keeper has taken over", patience, stream::err);
  EXPECT_TRUE(first.running());
  child third = start({"--stay"});
  EXPECT_EQ(inherited(third), "inherited 1 one=first");
  first.kill(SIGTERM);
  EXPECT_EQ(first.wait_exit(patience), exited(0));
  second.kill(SIGTERM);
  EXPECT_EQ(second.wait_exit(patience), exited(0));
  EXPECT_EQ(command(third, "put two second"), "done");
}

TEST_F(keepers, continue_if_the_next_program_fails) {
  child first = start_first();
  for (int i = 0; i < 3; ++i) {
    child second = start({}, {"fail"});
    EXPECT_EQ(inherited(second), both);
    EXPECT_EQ(second.wait_exit(patience), exited(3));
    EXPECT_EQ(inherited(first), both);
  }
  child missing = start({}, {"/no/such/program"});
  EXPECT_EQ(missing.wait_exit(patience), exited(127));
  expect_continues(first);
}

TEST_F(keepers, continue_if_the_next_program_is_not_ready_in_time) {
  child first = start_first();
  child second = start({"--takeover-timeout", "1"}, {"unready"});
  EXPECT_EQ(inherited(second), both);
  EXPECT_EQ(second.wait_exit(patience), exited(1));
  expect_continues(first);
}

TEST_F(keepers, continue_if_the_next_one_is_stopped) {
  child first = start_first();
  child second = start({}, {"unready"});
  EXPECT_EQ(inherited(second), both);
  second.kill(SIGTERM);
  second.wait_exit(patience);
  expect_continues(first);
}

TEST_F(keepers, continue_if_the_next_one_has_no_room) {
  child first = start_first();
  child second = start({"--max-descriptors", "1"});
  EXPECT_EQ(second.wait_exit(patience), exited(1));
  EXPECT_THAT(second.output().all_output(),
              testing::HasSubstr("the previous keeper has 2 descriptors, more than the 1 that this "
                                 "one stores"));
  expect_continues(first);
}

/// Otherwise a successor that is started again and again, as a container is, would take the program
/// away each time.
TEST_F(keepers, refuse_takeovers_for_a_while_after_one_that_failed) {
  pause_ = "1000000";  // after any failure, the longest pause
  child first = start_first();
  child second = start({}, {"fail"});
  EXPECT_EQ(inherited(second), both);
  EXPECT_EQ(second.wait_exit(patience), exited(3));
  EXPECT_EQ(inherited(first), both);
  for (int i = 0; i < 3; ++i) {
    child next = start();
    EXPECT_EQ(next.wait_exit(patience), exited(1));
    EXPECT_THAT(next.output().all_output(),
                testing::ContainsRegex("the previous keeper refuses: the last takeover has failed "
                                       "\\(the program has ended with status 3\\); "
                                       "the next one can begin in [0-9]+ s"));
  }
  EXPECT_EQ(command(first, "put three third"), "done");
  const std::string log = first.output().all_output();
  EXPECT_EQ(log.find("another keeper takes over"), log.rfind("another keeper takes over"));
}

/// As a pod that is deleted while its successor starts.
TEST_F(keepers, are_not_needed_once_they_have_handed_over) {
  child first = start_first();
  child second = start({}, {"unready"});
  EXPECT_EQ(inherited(second), both);
  first.kill(SIGTERM);
  EXPECT_EQ(first.wait_exit(patience), exited(0));
  second.wait_for_line("the previous keeper has ended", patience, stream::err);
  for (int i = 0; i < 3; ++i) {
    second.write("exit 3\n");
    EXPECT_EQ(inherited(second), both) << "a program that fails is started again";
  }
  EXPECT_EQ(command(second, "ready"), "done");
  child third = start();
  EXPECT_EQ(inherited(third), both) << "the second one listens at the path";
  EXPECT_EQ(second.wait_exit(patience), exited(0));
}

TEST_F(keepers, hand_over_before_they_end) {
  child first = start({"--stop-timeout", "1"});
  EXPECT_EQ(inherited(first), "inherited 0");
  EXPECT_EQ(command(first, "put one first"), "done");
  EXPECT_EQ(command(first, "put two second"), "done");
  EXPECT_EQ(command(first, "ignore-term"), "done");
  first.close_stdin();
  child second = start();
  first.wait_for_line("another keeper takes over", patience, stream::err);
  first.kill(SIGTERM);  // its program still runs
  EXPECT_EQ(inherited(second), both);
  first.wait_exit(patience);
  EXPECT_EQ(command(second, "put three third"), "done");
}

TEST_F(keepers, never_start_a_second_program_beside_an_orphan) {
  child first = start_first();
  child second = start({}, {"unready"});
  EXPECT_EQ(inherited(second), both);
  kill_all_of(second);
  first.wait_for_line("the other keeper has failed", patience, stream::err);
  std::this_thread::sleep_for(300ms);
  EXPECT_THAT(first.output().all_output(), testing::Not(testing::HasSubstr(both)));
  second.write("exit 0\n");  // read by its program
  expect_continues(first);
}

TEST_F(keepers, continue_whenever_the_next_one_is_killed) {
  child before = start_first();
  std::minstd_rand random(3);
  int continued = 0;
  for (int i = 0; i < 40; ++i) {
    child next = start();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
    next.kill(SIGKILL);
    EXPECT_EQ(next.wait_exit(patience), killed_by(SIGKILL));
    next.close_stdin();  // its program, an orphan, ends
    child after = start();
    const std::string has = inherited(after);
    EXPECT_EQ(before.wait_exit(patience), exited(0));
    if (has == both) {
      ++continued;
    } else {  // the killed one had taken over
      ASSERT_EQ(has, "inherited 0");
      EXPECT_EQ(command(after, "put one first"), "done");
      EXPECT_EQ(command(after, "put two second"), "done");
    }
    before = std::move(after);
  }
  EXPECT_GT(continued, 0);
}

TEST_F(keepers, ignore_what_is_not_a_keeper) {
  child first = start_first();
  const auto connect = [&] {
    return gpushm::transport::connect_packet_socket(takeover_, std::chrono::seconds(10));
  };
  const auto send = [](int socket, std::string_view text) {
    return gpushm::transport::send_packet(socket, std::as_bytes(std::span(text)), {});
  };
  connect();
  static_cast<void>(send(connect().get(), "takeover 2"));
  const auto silent = connect();
  EXPECT_TRUE(gpushm::transport::wait_readable(silent.get(), patience)) << "dropped";
  EXPECT_EQ(command(first, "put three third"), "done");
  EXPECT_EQ(command(first, "remove three"), "done");
  for (const std::string_view reply : {"", "keep", "ready"}) {
    auto wrong = connect();
    static_cast<void>(send(wrong.get(), "takeover 1"));
    EXPECT_TRUE(gpushm::transport::wait_readable(wrong.get(), patience)) << "a batch";
    if (!reply.empty()) {
      static_cast<void>(send(wrong.get(), reply));
    }
    wrong.reset();
    EXPECT_EQ(inherited(first), both);
  }
  child next = start();
  EXPECT_EQ(inherited(next), both);
}

TEST_F(keepers, have_different_sockets) {
  child first = start_first();
  started_ = 0;
  child second = start();
  EXPECT_EQ(second.wait_exit(patience), exited(1));
  EXPECT_THAT(second.output().all_output(), testing::HasSubstr("a living keeper has this socket"));
  EXPECT_EQ(command(first, "put three third"), "done");
}

}  // namespace
