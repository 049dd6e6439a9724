// SPDX-License-Identifier: Apache-2.0
// `gpushm serve`: readiness, existing sockets, a clean stop; and `gpushm demo`, which starts it.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/files/unique_fd.hpp"
#include "tests/support/broker_process/cli.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::child;
using gpushm_testing::eventually;
using gpushm_testing::exited;
using gpushm_testing::killed_by;
using gpushm_testing::stream;
using nlohmann::json;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

class serve_test : public ::testing::Test {
 protected:
  void create_persistent(const std::string& name) {
    const auto created = cli_.run({"create",
                                   name,
                                   "--size",
                                   "4096",
                                   "--device",
                                   "host",
                                   "--lifetime",
                                   "persistent",
                                   "--connect-timeout",
                                   "20s"});
    ASSERT_EQ(created.status, exited(0)) << created.err;
  }
  cli cli_;
};

TEST_F(serve_test, ready_line_is_printed_when_clients_can_connect) {
  for (int i = 0; i < 20; ++i) {
    auto broker = cli_.serve();
    EXPECT_EQ(cli_.run({"ls"}).status, exited(0));
  }
}

TEST_F(serve_test, goes_on_when_nobody_reads_its_log) {
  const auto fifo = cli_.directory() / "log";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const gpushm::base::unique_fd log(::open(fifo.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  const std::string noise(4'096, 'x');
  while (::write(log.get(), noise.data(), noise.size()) > 0) {
  }
  auto options = cli_.command({"serve", "--log-level", "debug"});
  const std::string script = "exec 2>\"$LOG\"; exec \"$0\" \"$@\"";
  options.argv.insert(options.argv.begin(), {"/bin/sh", "-c", script});
  options.env.emplace_back("LOG", fifo);
  auto broker = child::start(options);
  create_persistent("first");
  const auto send_wrong_packet = [&] {  // is logged
    const gpushm::base::unique_fd wrong(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = cli_.socket();
    std::memcpy(&address.sun_path[0], path.data(), path.size());
    EXPECT_EQ(::connect(wrong.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
    EXPECT_EQ(::send(wrong.get(), "wrong", 5, MSG_NOSIGNAL), 5);
    char end = 0;
    while (::recv(wrong.get(), &end, 1, 0) > 0) {
    }
  };
  for (int i = 0; i < 3; ++i) {
    send_wrong_packet();
    EXPECT_EQ(cli_.run({"stat", "first"}).status, exited(0));
  }
  std::string text(1'000'000, '\0');
  EXPECT_GT(::read(log.get(), text.data(), text.size()), 0);
  send_wrong_packet();
  const ssize_t size = ::read(log.get(), text.data(), text.size());
  ASSERT_GT(size, 0);
  EXPECT_THAT(text.substr(0, static_cast<std::size_t>(size)), HasSubstr("lines were dropped"));
}

TEST_F(serve_test, continues_in_the_background) {
  // Longer than a program takes to start on a busy machine.
  const auto started = cli_.run({"serve", "--detach", "--idle-exit", "5s"});
  ASSERT_EQ(started.status, exited(0)) << started.err;
  EXPECT_EQ(started.out, "gpushm: serving domain \"default\" at " + cli_.socket() + "\n");
  const auto second = cli_.run({"serve", "--detach"});
  EXPECT_EQ(second.status, exited(1));
  EXPECT_THAT(second.err, HasSubstr("use the existing broker, stop it, or serve another path"));
  // It stays while there is a client or a segment.
  auto holder = cli_.start({"create", "held", "--size", "4096", "--device", "host", "--hold"});
  holder.wait_for_line("created", seconds(20));
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(cli_.run({"stat", "held"}).status, exited(0));
  }
  create_persistent("kept");
  holder.kill(SIGTERM);
  EXPECT_EQ(holder.wait_exit(seconds(20)), exited(0));
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(cli_.run({"stat", "kept"}).status, exited(0));
  }
  ASSERT_EQ(cli_.run({"rm", "kept"}).status, exited(0));
  EXPECT_TRUE(
      eventually([&] { return std::filesystem::is_empty(cli_.directory().path()); }, seconds(60)))
      << "it removes its files when it ends";
}

TEST_F(serve_test, in_the_background_keeps_no_pipe_of_the_caller) {
  auto options = cli_.command({});
  // With a pipe that the broker keeps, `cat` ends with the broker.
  options.argv = {"/bin/sh",
                  "-c",
                  "\"$0\" serve --detach --idle-exit 10s </dev/null 2>&1 | cat && \"$0\" ls",
                  gpushm_testing::own_program("gpushm")};
  const auto done = gpushm_testing::run_program(options, seconds(60));
  EXPECT_EQ(done.status, exited(0)) << done.err;
  EXPECT_THAT(done.out, HasSubstr("gpushm: serving domain"));
}

TEST_F(serve_test, detached_broker_that_cannot_start_fails) {
  auto options = cli_.command({"serve", "--detach", "--socket", cli_.directory() / "none/socket"});
  const auto failed = gpushm_testing::run_program(options, seconds(60));
  EXPECT_EQ(failed.status, exited(1));
  EXPECT_THAT(failed.err, HasSubstr("none does not exist (create it"));
}

TEST_F(serve_test, ready_descriptor_gets_a_line_feed) {
  const auto ready = cli_.directory() / "ready";
  auto options = cli_.command({"serve", "--ready-fd", "7"});
  std::string script = "exec 7>\"$READY\"; exec \"$0\" \"$@\"";
  options.argv.insert(options.argv.begin(), {"/bin/sh", "-c", script});
  options.env.emplace_back("READY", ready);
  auto broker = child::start(options);
  EXPECT_TRUE(eventually(
      [&] {
        std::error_code missing;
        return std::filesystem::file_size(ready, missing) == 1;
      },
      seconds(20)))
      << broker.output().all_output();
  EXPECT_EQ(cli_.run({"ls"}).status, exited(0));
}

TEST_F(serve_test, service_manager_is_notified_of_start_and_stop) {
  const auto path = cli_.directory() / "notify";
  const gpushm::base::unique_fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(path.size(), sizeof address.sun_path);
  std::memcpy(address.sun_path, path.data(), path.size());
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const timeval limit{20, 0};
  ASSERT_EQ(::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  const auto next = [&] {
    std::array<char, 512> text{};
    const auto size = ::recv(socket.get(), text.data(), text.size(), 0);
    return size > 0 ? std::string(text.data(), static_cast<std::size_t>(size)) : "no message";
  };

  auto options = cli_.command({"serve"});
  options.env.emplace_back("NOTIFY_SOCKET", path);
  auto broker = child::start(options);
  EXPECT_THAT(next(), HasSubstr("READY=1"));
  broker.kill(SIGTERM);
  EXPECT_THAT(next(), HasSubstr("STOPPING=1"));
  EXPECT_EQ(broker.wait_exit(seconds(20)), exited(0));
}

TEST_F(serve_test, clean_stop_reports_losses_and_removes_the_socket) {
  auto broker = cli_.serve();
  create_persistent("kept/one");
  create_persistent("kept/two");
  auto holder = cli_.start({"create", "leased", "--size", "4096", "--device", "host", "--hold"});
  holder.wait_for_line("^created", seconds(20));
  broker.kill(SIGTERM);
  EXPECT_EQ(broker.wait_exit(seconds(20)), exited(0)) << broker.output().all_output();
  const auto log_text = broker.output().all_output();
  EXPECT_THAT(log_text, HasSubstr("lost persistent segment \"kept/one\""));
  EXPECT_THAT(log_text, HasSubstr("lost persistent segment \"kept/two\""));
  EXPECT_THAT(log_text, Not(HasSubstr("\"leased\"")));
  EXPECT_FALSE(std::filesystem::exists(cli_.socket()));
  EXPECT_EQ(holder.wait_exit(seconds(20)), exited(1)) << holder.output().all_output();
  EXPECT_THAT(holder.text(stream::err), HasSubstr("the broker is gone"));
}

TEST_F(serve_test, sigterm_and_sigint_stop) {
  for (const int number : {SIGTERM, SIGINT}) {
    auto broker = cli_.serve();
    broker.kill(number);
    EXPECT_EQ(broker.wait_exit(seconds(20)), exited(0)) << number;
  }
}

TEST_F(serve_test, socket_of_a_dead_broker_is_replaced) {
  auto dead = cli_.serve();
  dead.kill(SIGKILL);
  EXPECT_EQ(dead.wait_exit(seconds(20)), killed_by(SIGKILL));
  ASSERT_TRUE(std::filesystem::exists(cli_.socket()));
  const auto broker = cli_.serve();
  EXPECT_EQ(cli_.run({"ls"}).status, exited(0));
}

TEST_F(serve_test, socket_of_a_live_broker_is_left_alone) {
  auto first = cli_.serve();
  create_persistent("still-there");
  const auto second = cli_.run({"serve"});
  EXPECT_EQ(second.status, exited(1));
  EXPECT_THAT(second.err, HasSubstr("a live broker serves this socket"));
  EXPECT_EQ(second.out, "");
  EXPECT_TRUE(first.running());
  EXPECT_EQ(cli_.run({"stat", "still-there"}).status, exited(0));
}

TEST_F(serve_test, path_that_is_not_a_socket_is_left_alone) {
  std::ofstream(cli_.socket()) << "precious";
  const auto refused = cli_.run({"serve"});
  EXPECT_EQ(refused.status, exited(1)) << refused.err;
  std::string contents;
  std::ifstream(cli_.socket()) >> contents;
  EXPECT_EQ(contents, "precious");
}

TEST_F(serve_test, mode_does_not_depend_on_the_umask) {
  for (const auto& [text, mode] :
       std::vector<std::pair<std::string, mode_t>>{{"0600", 0600}, {"0666", 0666}}) {
    const auto broker = cli_.serve({"--mode", text});
    struct stat status {};
    ASSERT_EQ(::stat(cli_.socket().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777U, mode);
    EXPECT_TRUE(S_ISSOCK(status.st_mode));
  }
}

TEST_F(serve_test, missing_or_read_only_directory_is_reported) {
  const auto missing = cli_.run({"serve", "--socket", "/nonexistent/socket"});
  EXPECT_EQ(missing.status, exited(1));
  EXPECT_THAT(missing.err, HasSubstr("/nonexistent"));
  const auto too_long = cli_.run({"serve", "--socket", "/tmp/" + std::string(200, 's')});
  EXPECT_EQ(too_long.status, exited(1));
}

// ---- demo ----

class demo_test : public serve_test {
 protected:
  /// The demo leaves no file: its directory is under TMPDIR, which this test sets.
  void TearDown() override { EXPECT_TRUE(std::filesystem::is_empty(cli_.directory().path())); }
};

TEST_F(demo_test, passes_on_the_host) {
  const auto result = cli_.run({"demo", "--device", "host", "--size", "3MiB"});
  EXPECT_EQ(result.status, exited(0)) << result.out << result.err;
  EXPECT_THAT(result.out, ::testing::EndsWith("PASS\n"));
  EXPECT_THAT(result.out, HasSubstr("consumer"));
  EXPECT_THAT(result.out, HasSubstr("SIGKILL"));
  EXPECT_THAT(result.out, HasSubstr("backend host"));
}

TEST_F(demo_test, passes_with_each_process_isolated) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "separate namespaces require root";
  }
  const auto result =
      cli_.run({"demo", "--device", "host", "--size", "3MiB", "--isolated", "--json"});
  ASSERT_EQ(result.status, exited(0)) << result.out << result.err;
  const auto document = json::parse(result.out);
  EXPECT_EQ(document.at("result"), "PASS");
  EXPECT_EQ(document.at("isolated"), true);
  EXPECT_EQ(document.at("size_bytes"), 3U << 20U);
  EXPECT_EQ(document.at("error"), nullptr);
}

TEST_F(demo_test, detects_one_wrong_byte) {
  for (const char* stage : {"fill", "rewrite", "survive"}) {
    const auto result =
        cli_.run({"demo", "--device", "host", "--size", "1MiB", "--corrupt", stage, "--json"});
    EXPECT_EQ(result.status, exited(1)) << stage;
    const auto document = json::parse(result.out);
    EXPECT_EQ(document.at("result"), "FAIL") << stage;
    EXPECT_THAT(document.at("error").dump(), HasSubstr("1 of 1048576 bytes")) << stage;
  }
}

TEST_F(demo_test, missing_device_is_a_failure) {
  const auto result =
      cli_.run({"demo", "--device", "GPU-00000000-0000-0000-0000-000000000000", "--size", "1MiB"});
  EXPECT_EQ(result.status, exited(1)) << result.out;
  EXPECT_THAT(result.out + result.err, HasSubstr("FAIL"));
}

}  // namespace
}  // namespace gpushm_tests
