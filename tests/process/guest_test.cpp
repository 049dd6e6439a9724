// SPDX-License-Identifier: Apache-2.0
// A broker inside a process that forks and executes: its children must not take over its socket,
// keep its resources, or end it.
#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpushm/broker.hpp"
#include "gpushm/file_export.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/broker_process/broker_log.hpp"
#include "tests/support/broker_process/broker_process.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::child;
using gpushm_testing::clock;
using gpushm_testing::count_descriptors;
using gpushm_testing::eventually;
using gpushm_testing::own_program;
using gpushm_testing::process_is_alive;
using gpushm_testing::scaled_timeout;
using gpushm_testing::temp_dir;
using gpushm_testing::to_text;
using gpushm_testing::total;
using std::chrono::milliseconds;
using std::chrono::seconds;

gpushm::errc code_of(const auto& call) {
  try {
    call();
  } catch (const gpushm::error& failure) {
    return failure.code();
  }
  ADD_FAILURE() << "no error";
  return {};
}

bool exists(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0;
}

/// Resources of the in-process broker that a process has: sockets, memory, the lock, pidfds.
std::string guest_resources_of(pid_t pid) {
  gpushm_testing::descriptor_counts counts;
  for (const auto& [kind, count] : count_descriptors(pid)) {
    if (kind.find("socket") != std::string::npos || kind.find("memfd:") != std::string::npos ||
        kind.find(".lock") != std::string::npos || kind.find("pidfd") != std::string::npos ||
        kind.find("/guest") != std::string::npos) {
      counts[kind] = count;
    }
  }
  return to_text(counts);
}

class guest : public ::testing::Test {
 protected:
  void start(const std::string& kind, const std::string& action) {
    host_.emplace(child::start({.argv = {own_program("guest_host"), path_, kind, action}}));
    host_->wait_for_line("^ready$", seconds(10));
  }
  /// Starts the host's work; returns the pids of its children.
  std::vector<pid_t> go(std::size_t children = 1) {
    host_->write("go\n");
    std::vector<pid_t> pids;
    while (pids.size() < children) {
      pids.push_back(
          std::stoi(host_->wait_for_line("^child [0-9]+$", scaled_timeout(seconds(10))).substr(6)));
    }
    return pids;
  }
  void kill_host() {
    host_->kill(SIGKILL);
    (void)host_->wait_exit(seconds(5));
  }
  [[nodiscard]] gpushm::client connect() const {
    return gpushm::client::connect({.socket_path = socket_});
  }
  /// Expects the broker's socket path to be free, with the host dead and its children alive.
  void expect_socket_is_free(const std::vector<pid_t>& children) {
    const auto begin = clock::now();
    EXPECT_EQ(code_of([&] { (void)connect(); }), gpushm::errc::broker_unreachable);
    EXPECT_LT(clock::now() - begin, scaled_timeout(seconds(10))) << "not after a request timeout";
    auto successor = gpushm::broker::start({.socket_path = socket_});
    EXPECT_TRUE(connect().list().empty());
    for (const pid_t each : children) {
      EXPECT_TRUE(process_is_alive(each)) << "the child must have been running all the time";
    }
  }

  temp_dir directory_;
  std::string path_ = directory_ / "guest";
  std::string socket_ = path_ + ".sock";
  std::optional<child> host_;
};

class dead_guest_host : public guest, public ::testing::WithParamInterface<const char*> {};

TEST_P(dead_guest_host, frees_socket_and_memory_while_a_child_lives) {
  start("broker", GetParam());
  auto client = connect();
  auto waiting = connect();  // another connection, and a segment that only the broker keeps
  auto created = client.create(
      "kept", {.size_bytes = 1 << 20, .device = "host", .lifetime = gpushm::lifetime::persistent});
  created.publish();
  const auto children = go();
  const pid_t survivor = children.front();
  ASSERT_TRUE(eventually([&] { return guest_resources_of(survivor).empty(); }, seconds(20)))
      << guest_resources_of(survivor);
  EXPECT_EQ(client.list().size(), 1U) << "the parent still serves";

  kill_host();
  EXPECT_TRUE(eventually([&] { return created.state() == gpushm::segment_state::broker_gone; },
                         seconds(20)));
  expect_socket_is_free(children);
  created.reset();
  client.trim();
  EXPECT_EQ(gpushm_testing::shared_memory_bytes({survivor}, "gpushm"), 0U);
}

INSTANTIATE_TEST_SUITE_P(,
                         dead_guest_host,
                         ::testing::Values("fork", "exec", "system"),
                         [](const auto& how) { return std::string(how.param); });

TEST_F(guest, child_destroying_its_copy_has_no_effect) {
  start("broker", "destroy");
  auto client = connect();
  (void)go();
  EXPECT_TRUE(exists(socket_));
  EXPECT_TRUE(exists(socket_ + ".lock"));
  EXPECT_TRUE(client.list().empty());
  EXPECT_TRUE(connect().list().empty()) << "new clients can connect";
  EXPECT_EQ(code_of([&] { (void)gpushm::broker::start({.socket_path = socket_}); }),
            gpushm::errc::address_in_use);
}

TEST_F(guest, child_destroying_its_file_export_has_no_effect) {
  start("file", "destroy");
  const auto children = go();
  EXPECT_EQ(guest_resources_of(children.front()), "");
  EXPECT_TRUE(exists(path_));
  EXPECT_TRUE(exists(socket_));
  EXPECT_TRUE(exists(socket_ + ".lock"));
  EXPECT_EQ(gpushm::import_file(path_).size_bytes(), 1U << 20U);
  EXPECT_EQ(code_of([&] { (void)gpushm::file_export::begin(path_); }),
            gpushm::errc::address_in_use);
}

TEST_F(guest, file_of_dead_exporter_is_stale_while_a_child_lives) {
  start("file", "fork");
  const auto children = go();
  kill_host();
  ASSERT_TRUE(process_is_alive(children.front()));
  EXPECT_EQ(code_of([&] { (void)gpushm::import_file(path_); }), gpushm::errc::peer_died);
  auto successor = gpushm::file_export::begin(path_);
  auto created = successor.client().create("again", {.size_bytes = 4096, .device = "host"});
  created.publish();
  successor.write(created);
  EXPECT_EQ(gpushm::import_file(path_).name(), "again");
  EXPECT_TRUE(process_is_alive(children.front()));
}

TEST_F(guest, child_gets_an_error_from_every_function) {
  start("broker", "use");
  host_->write("go\n");
  for (const char* call : {"socket_path", "epoch", "statistics"}) {
    EXPECT_EQ(host_->wait_for_line("^child .*:", seconds(10)),
              "child " + std::string(call) + ": forked");
  }
}

TEST_F(guest, child_gets_an_error_from_every_function_of_a_file_export) {
  start("file", "use");
  host_->write("go\n");
  for (const char* call : {"write", "list"}) {
    EXPECT_EQ(host_->wait_for_line("^child .*:", seconds(10)),
              "child " + std::string(call) + ": forked");
  }
}

/// As a data loader's: forked while threads of the host start and exit.
TEST_F(guest, workers_inherit_no_resources) {
  start("broker", "workers");
  const auto workers = go(4);
  for (const pid_t each : workers) {
    EXPECT_EQ(guest_resources_of(each), "");
  }
  kill_host();
  expect_socket_is_free(workers);
}

// ---- clients ----

/// Under sanitizers, a child of a process with threads may hang in the sanitizer's locks.
TEST(forking_client, has_children_without_deadlocks) {
  if (gpushm_testing::timeout_factor != 1) {
    GTEST_SKIP() << "a sanitizer's allocator is not usable in such children";
  }
  const temp_dir directory;
  const broker_log log;
  const auto broker = gpushm::broker::start({.socket_path = directory / "socket"});
  const auto result = gpushm_testing::run_program(
      {.argv = {own_program("fork_hammer"), broker.socket_path(), "400"}}, seconds(100));
  EXPECT_EQ(result.status, gpushm_testing::exited(0)) << result.out << result.err;
  EXPECT_EQ(result.out, "");
}

/// Descriptors in flight between the broker and a mapping are not inherited either.
TEST(forking_client, children_inherit_no_descriptor) {
  if (gpushm_testing::timeout_factor != 1) {
    GTEST_SKIP() << "a sanitizer's allocator is not usable in such children";
  }
  const temp_dir directory;
  const auto broker = gpushm::broker::start({.socket_path = directory / "socket"});
  const auto result = gpushm_testing::run_program(
      {.argv = {own_program("fork_descriptors"), broker.socket_path(), "300"}}, seconds(100));
  EXPECT_EQ(result.status, gpushm_testing::exited(0)) << result.err;
  EXPECT_EQ(result.out, "") << "kept by a child";
  EXPECT_EQ(result.err, "") << "its threads failed";
}

TEST(create, of_too_much_host_memory_is_undone) {
  const temp_dir directory;
  const auto broker = gpushm::broker::start({.socket_path = directory / "socket"});
  auto client = gpushm::client::connect({.socket_path = broker.socket_path()});
  const auto begin = clock::now();
  EXPECT_EQ(
      code_of([&] { (void)client.create("big", {.size_bytes = 1ULL << 42U, .device = "host"}); }),
      gpushm::errc::out_of_memory);
  EXPECT_LT(clock::now() - begin, scaled_timeout(seconds(10)));
  EXPECT_TRUE(client.create("big", {.size_bytes = 4096, .device = "host"})) << "the name is free";
}

// ---- thread creation fails ----

/// Returns the error of `call` in a child that cannot start threads: "CODE: TEXT", or "no error".
std::string error_without_threads(const std::function<void()>& call) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    constexpr uid_t unprivileged_uid = 65'534;  // root has no such limit
    const rlimit none{0, 0};
    if ((::getuid() == 0 &&
         ::setresuid(unprivileged_uid, unprivileged_uid, unprivileged_uid) != 0) ||
        ::setrlimit(RLIMIT_NPROC, &none) != 0) {
      ::_exit(1);
    }
    std::string text = "no error";
    try {
      call();
    } catch (const gpushm::error& why) {
      text = std::string(gpushm::to_string(why.code())) + ": " + why.what();
    } catch (const std::exception& why) {
      text = std::string("not an error of the library: ") + why.what();
    }
    ::_exit(::write(ends[1], text.data(), text.size()) > 0 ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text(1'000, ' ');
  const auto size = ::read(ends[0], text.data(), text.size());
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  ::close(ends[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return text;
}

TEST(process_without_threads, gets_an_error) {
  const temp_dir directory(0777);
  const broker_process broker(directory / "socket");
  ASSERT_EQ(::chmod(broker.socket_path().c_str(), 0666), 0);
  const std::string next_step = "raise the limit of processes (ulimit -u, or the pids limit of the";
  const auto connecting = error_without_threads(
      [&] { (void)gpushm::client::connect({.socket_path = broker.socket_path()}); });
  EXPECT_TRUE(connecting.starts_with("system_error: ")) << connecting;
  EXPECT_NE(connecting.find(next_step), std::string::npos) << connecting;
  const auto serving = error_without_threads(
      [&] { (void)gpushm::broker::start({.socket_path = directory / "other"}); });
  EXPECT_TRUE(serving.starts_with("system_error: ")) << serving;
  EXPECT_NE(serving.find(next_step), std::string::npos) << serving;
  EXPECT_FALSE(exists(directory / "other"));
  EXPECT_FALSE(exists(directory / "other.lock"));
  const auto exporting =
      error_without_threads([&] { (void)gpushm::file_export::begin(directory / "file"); });
  EXPECT_TRUE(exporting.starts_with("system_error: ")) << exporting;
}

// ---- concurrent exports into a file ----

/// Has `count` processes export into `path` concurrently, and keep a successful export until all
/// have tried. Returns the number of successes.
int successes_of(const std::string& path, int count) {
  int begin[2];
  int results[2];
  int end[2];
  EXPECT_EQ(::pipe(begin) + ::pipe(results) + ::pipe(end), 0);
  std::vector<pid_t> racers;
  for (int i = 0; i < count; ++i) {
    racers.push_back(::fork());
    if (racers.back() == 0) {
      ::close(begin[1]);
      ::close(end[1]);
      const std::string text = "from " + std::to_string(i);
      char outcome = '?';
      char byte = 0;
      (void)!::read(begin[0], &byte, 1);
      try {
        const gpushm::ticket_file ticket(path, std::as_bytes(std::span(text)));
        outcome = 'w';
        (void)!::write(results[1], &outcome, 1);
        (void)!::read(end[0], &byte, 1);
        ::_exit(0);  // leaves its file for the next round to replace
      } catch (const gpushm::error& why) {
        outcome = why.code() == gpushm::errc::address_in_use ? 'l' : 'e';
        (void)!::write(results[1], &outcome, 1);
        (void)!::read(end[0], &byte, 1);
      }
      ::_exit(0);
    }
  }
  ::close(begin[0]);
  ::close(begin[1]);
  ::close(end[0]);
  int won = 0;
  for (int i = 0; i < count; ++i) {
    char outcome = 0;
    EXPECT_EQ(::read(results[0], &outcome, 1), 1);
    EXPECT_TRUE(outcome == 'w' || outcome == 'l') << outcome;
    won += outcome == 'w' ? 1 : 0;
  }
  EXPECT_FALSE(gpushm::read_ticket_file(path).empty()) << "a complete file of a live exporter";
  ::close(end[1]);
  for (const pid_t racer : racers) {
    EXPECT_EQ(::waitpid(racer, nullptr, 0), racer);
  }
  ::close(results[0]);
  ::close(results[1]);
  return won;
}

TEST(ticket_file_race, one_export_succeeds_without_and_with_a_stale_file) {
  const temp_dir directory;
  const std::string path = directory / "file";
  for (int round = 0; round < 60; ++round) {
    if (round % 3 == 0) {
      ::unlink(path.c_str());
    }
    ASSERT_EQ(successes_of(path, 8), 1) << "round " << round;
  }
  ::unlink(path.c_str());
  EXPECT_EQ(::rmdir(directory.path().c_str()), 0) << "a failed exporter's file is left";
  ASSERT_EQ(::mkdir(directory.path().c_str(), 0700), 0);
}

}  // namespace
}  // namespace gpushm_tests
