// SPDX-License-Identifier: Apache-2.0
// A client at its limits: few descriptors, and a broker that does not read.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/files/page_size.hpp"
#include "base/files/unique_fd.hpp"
#include "base/process/signals.hpp"
#include "gpushm/gpushm.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "tests/support/broker_process/bad_input.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm_tests {
namespace {

using gpushm::errc;
using gpushm_testing::scaled_timeout;
namespace wire = gpushm::wire;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Sets this process's soft limit of descriptors during its lifetime.
class few_descriptors {
 public:
  explicit few_descriptors(rlim_t limit) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit lowered{limit, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &lowered), 0);
  }
  few_descriptors(const few_descriptors&) = delete;
  few_descriptors& operator=(const few_descriptors&) = delete;
  ~few_descriptors() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  rlimit before_{};
};

struct shape {
  std::size_t names;
  std::uint64_t chunks;
};
class open_many_of_chunks : public bad_input, public testing::WithParamInterface<shape> {};

// All answers together have many times the descriptors that this process may open.
TEST_P(open_many_of_chunks, succeeds_with_1024_descriptors) {
  const auto [names, chunks] = GetParam();
  const std::uint64_t page = gpushm::base::host_page_bytes();
  auto producer = connect();
  std::vector<gpushm::segment> created;
  std::vector<std::string> wanted;
  for (std::size_t i = 0; i < names; ++i) {
    wanted.push_back("t/" + std::to_string(i));
    created.push_back(producer.create(
        wanted.back(), {.size_bytes = chunks * page, .device = "host", .chunk_bytes = page}));
    created.back().fill(static_cast<std::byte>(i));
    created.back().publish();
  }
  const few_descriptors limit(1024);
  auto consumer = connect();
  const auto results = consumer.open_many(wanted);
  ASSERT_EQ(results.size(), names);
  for (std::size_t i = 0; i < names; ++i) {
    ASSERT_TRUE(results[i]) << i << ": " << results[i].failure()->what();
    ASSERT_EQ(results[i].value().name(), wanted[i]);
    std::vector<std::byte> last(1);
    results[i].value().read(chunks * 4096 - 1, last);
    ASSERT_EQ(last[0], static_cast<std::byte>(i));
  }
}
INSTANTIATE_TEST_SUITE_P(shapes,
                         open_many_of_chunks,
                         testing::Values(shape{128, 52}, shape{128, 10}, shape{12, 600}));

class stopped_broker : public bad_input {
 protected:
  /// Time to see a session that is ending, also on a loaded machine.
  stopped_broker() : bad_input({"fence_delay_ms=1000"}) {}

  /// Blocks until all of its threads are stopped.
  void stop() {
    ASSERT_EQ(gpushm::base::signal_process(broker_.pid(), SIGSTOP), 0);
    siginfo_t stopped{};
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(broker_.pid()), &stopped, WSTOPPED | WNOWAIT), 0);
  }
  void resume() { ASSERT_EQ(gpushm::base::signal_process(broker_.pid(), SIGCONT), 0); }
  void TearDown() override {
    resume();
    bad_input::TearDown();
  }
};

TEST_F(stopped_broker, does_not_delay_end_of_segments) {
  auto client = connect();
  std::vector<gpushm::segment> created;
  for (int i = 0; i < 1'000; ++i) {
    created.push_back(
        client.create("s" + std::to_string(i), {.size_bytes = 4096, .device = "host"}));
  }
  stop();
  const auto begin = gpushm_testing::clock::now();
  created.clear();
  // In an earlier version, the end of each segment after the 278th took a second.
  EXPECT_LT(gpushm_testing::clock::now() - begin, scaled_timeout(seconds(60)));
  resume();
  EXPECT_TRUE(gpushm_testing::eventually(
      [&] { return bystander_.list().empty() && client.list().empty(); }, seconds(10)));
}

TEST_F(stopped_broker, reads_goodbye_of_client_that_stopped_reading) {
  for (const bool sends_goodbye : {true, false}) {
    {
      auto client = greeted();
      auto wanted = gpushm_testing::reserve_pages("kv", 1);
      wanted.lifetime = gpushm::lifetime::persistent;
      ASSERT_NE(gpushm_testing::publish_segment(client, wanted), 0U);
      client.send(wire::subscribe{""});
      stop();
      client.send(wire::list{"", ""});  // the reply has no reader
      if (sends_goodbye) {
        client.send(wire::bye{});
      }
    }
    resume();
    EXPECT_EQ(ending_count_after_creator_exit("kv"), sends_goodbye ? 0U : 1U);
    bystander_.remove("kv");
  }
}

TEST_F(stopped_broker, client_timeout_applies) {
  stop();
  const auto begin = gpushm_testing::clock::now();
  const auto code = code_of([&] {
    (void)gpushm::client::connect(
        {.socket_path = broker_.socket_path(), .timeout = milliseconds(500)});
  });
  EXPECT_TRUE(code == errc::timed_out || code == errc::broker_unreachable);
  EXPECT_LT(gpushm_testing::clock::now() - begin, scaled_timeout(seconds(15)));
}

// ---- descriptors that the kernel refuses to send ----

/// A packet with more descriptors than the limit, which is not read: the kernel then refuses
/// further ones of this uid, regardless of the uid's other processes. Waits for those first.
class unread_descriptors {
 public:
  explicit unread_descriptors(rlim_t limit) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    near_ = gpushm::base::unique_fd(ends[0]);
    far_ = gpushm::base::unique_fd(ends[1]);
    const bool filled = gpushm_testing::eventually([&] { return accepts(limit + 1); }, seconds(10));
    refused_ = filled && !accepts(1);
  }
  [[nodiscard]] bool refused() const noexcept { return refused_; }
  void read_all() {
    far_.reset();
    near_.reset();
  }

 private:
  [[nodiscard]] bool accepts(std::size_t count) const {
    const std::vector<int> descriptors(count, near_.get());
    try {
      return gpushm::transport::send_packet(near_.get(), std::array<std::byte, 1>{}, descriptors) ==
             gpushm::transport::send_result::sent;
    } catch (const gpushm::error& why) {
      EXPECT_EQ(why.code(), errc::too_many_descriptors);
      return false;
    }
  }

  gpushm::base::unique_fd near_;
  gpushm::base::unique_fd far_;
  bool refused_ = false;
};

constexpr rlim_t few = 64;

/// Expects `call` to return true in a process with few descriptors and a separate uid.
void run_unprivileged(const std::string& socket_path,
                      milliseconds request_limit,
                      const std::function<bool(gpushm::client&)>& call) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    // Root has no such limit. The uid is unique per process, because the kernel counts by uid.
    const uid_t unused = 20'000 + static_cast<uid_t>(::getpid()) % 40'000;
    const rlimit lowered{few, few};
    if ((::getuid() == 0 && ::setresuid(unused, unused, unused) != 0) ||
        ::setrlimit(RLIMIT_NOFILE, &lowered) != 0) {
      ::_exit(2);
    }
    try {
      auto client =
          gpushm::client::connect({.socket_path = socket_path, .request_limit = request_limit});
      ::_exit(call(client) ? 0 : 1);
    } catch (const std::exception& why) {
      std::cerr << why.what() << std::endl;
      ::_exit(1);
    }
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

/// Connects no client here: this process has no threads when it forks.
class refused_descriptors : public testing::Test {
 protected:
  refused_descriptors() { EXPECT_EQ(::chmod(broker_.socket_path().c_str(), 0666), 0); }

  gpushm_testing::temp_dir directory_{0777};
  broker_process broker_{directory_ / "socket"};
};

TEST_F(refused_descriptors, are_sent_after_others_of_the_uid_were_read) {
  run_unprivileged(broker_.socket_path(), scaled_timeout(seconds(20)), [](gpushm::client& client) {
    unread_descriptors others(few);
    if (!others.refused()) {
      std::cerr << "the kernel refused no descriptors" << std::endl;
      return false;
    }
    const std::jthread reader([&] {
      std::this_thread::sleep_for(milliseconds(300));
      others.read_all();
    });
    client.create("made", {.size_bytes = 1 << 20, .device = "host"}).publish();
    return true;
  });
}

TEST_F(refused_descriptors, are_an_error_at_the_deadline) {
  run_unprivileged(broker_.socket_path(), milliseconds(500), [](gpushm::client& client) {
    const unread_descriptors others(few);
    const auto begin = gpushm_testing::clock::now();
    const auto code =
        code_of([&] { (void)client.create("made", {.size_bytes = 4096, .device = "host"}); });
    const auto took = gpushm_testing::clock::now() - begin;
    std::cerr << (code ? to_string(*code) : "no error") << " after "
              << std::chrono::duration_cast<milliseconds>(took).count() << " ms" << std::endl;
    return others.refused() && code == errc::too_many_descriptors && took >= milliseconds(450) &&
           took < scaled_timeout(seconds(5)) && client.list().empty();
  });
}

}  // namespace
}  // namespace gpushm_tests
