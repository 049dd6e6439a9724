// SPDX-License-Identifier: Apache-2.0
// The node's domains: access, and cleanup of closed domains.
#include "domains/serve/domain_set.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/files/fork_guard.hpp"
#include "base/files/unique_fd.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::domains {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using namespace std::chrono_literals;

mode_t mode_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777U;
}

class serving_domains : public domain_set {
 public:
  explicit serving_domains(domain_set_options options) : domain_set(std::move(options)) { serve(); }

  /// All but "default".
  [[nodiscard]] std::vector<std::string> list() const {
    std::vector<std::string> names;
    for (const reading& each : read()) {
      if (each.domain != "default") {
        names.push_back(each.domain);
      }
    }
    return names;
  }
  /// The first one; empty: none.
  [[nodiscard]] std::string problem() const {
    for (const reading& each : read()) {
      if (!each.problem.empty()) {
        return each.problem;
      }
    }
    return {};
  }
};

class node_domains : public ::testing::Test {
 protected:
  domain_set_options options() {
    domain_set_options custom;
    custom.run_dir = folder_ / "run";
    custom.domains = {"default"};
    return custom;
  }
  client connect(const std::string& domain) {
    return client::connect({.socket_path = folder_ / ("run/d/" + domain + "/socket")});
  }

  gpushm_testing::temp_dir folder_;
};

TEST_F(node_domains, parent_directory_is_private_domains_are_public) {
  const serving_domains brokers(options());
  EXPECT_EQ(mode_of(folder_ / "run/d"), 0700U);
  EXPECT_EQ(mode_of(folder_ / "run/d/default"), 0755U);
  EXPECT_EQ(mode_of(folder_ / "run/d/default/socket"), 0666U);
  EXPECT_EQ(brokers.directory(), folder_ / "run/d");
}

TEST_F(node_domains, domains_are_isolated) {
  serving_domains brokers(options());
  EXPECT_EQ(brokers.open("claim-a"), folder_ / "run/d/claim-a");
  brokers.open("claim-b");
  client a = connect("claim-a");
  segment created = a.create("w", {.size_bytes = 4'096, .device = "host"});
  created.publish();
  EXPECT_TRUE(connect("claim-a").try_open("w"));
  EXPECT_FALSE(connect("claim-b").try_open("w"));
  EXPECT_FALSE(connect("default").try_open("w"));
  EXPECT_THAT(brokers.list(), ElementsAre("claim-a", "claim-b"));
}

TEST_F(node_domains, opening_again_changes_nothing) {
  serving_domains brokers(options());
  brokers.open("claim-a");
  client a = connect("claim-a");
  segment created = a.create("w", {.size_bytes = 4'096, .device = "host"});
  created.publish();
  brokers.open("claim-a");
  EXPECT_TRUE(connect("claim-a").try_open("w"));
}

TEST_F(node_domains, close_disconnects_clients_and_frees_segments) {
  serving_domains brokers(options());
  static_cast<void>(base::life_pipe());  // created once per process, with the first connection
  const auto before = gpushm_testing::total(gpushm_testing::count_descriptors(::getpid()));
  brokers.open("claim-a");
  {
    client a = connect("claim-a");
    segment created =
        a.create("w", {.size_bytes = 4'096, .device = "host", .lifetime = lifetime::persistent});
    created.publish();
    brokers.close("claim-a");
    EXPECT_FALSE(std::filesystem::exists(folder_ / "run/d/claim-a"));
    EXPECT_THROW(static_cast<void>(connect("claim-a")), error);
    brokers.open("claim-a");
    EXPECT_THAT(connect("claim-a").list(), IsEmpty());
    brokers.close("claim-a");
  }
  EXPECT_THAT(brokers.list(), IsEmpty());
  EXPECT_EQ(gpushm_testing::total(gpushm_testing::count_descriptors(::getpid())), before);
  brokers.close("claim-a");  // not open: no effect
}

TEST_F(node_domains, calls_for_one_domain_and_its_check_exclude_each_other) {
  domain_set_options custom = options();
  custom.check_interval = 1ms;
  custom.timeout = gpushm_testing::scaled_timeout(30s);
  serving_domains brokers(custom);
  {
    std::vector<std::jthread> threads;
    for (int number = 0; number < 8; ++number) {
      threads.emplace_back([&brokers] {
        for (int round = 0; round < 5; ++round) {
          brokers.open("claim-a");
          brokers.close("claim-a");
        }
      });
    }
  }
  EXPECT_THAT(brokers.list(), IsEmpty());
  EXPECT_EQ(brokers.problem(), "");
  brokers.open("claim-a");
  EXPECT_EQ(connect("claim-a").broker().domain, "claim-a");
}

TEST_F(node_domains, stale_directory_is_listed_and_removed) {
  std::filesystem::create_directories(folder_ / "run/d/claim-old");
  serving_domains brokers(options());
  EXPECT_THAT(brokers.list(), ElementsAre("claim-old"));
  brokers.close("claim-old");
  EXPECT_THAT(brokers.list(), IsEmpty());
}

TEST_F(node_domains, configured_domain_cannot_be_closed) {
  serving_domains brokers(options());
  EXPECT_THAT(brokers.list(), IsEmpty());
  try {
    brokers.close("default");
    FAIL() << "no error";
  } catch (const error& why) {
    EXPECT_STREQ(why.what(),
                 "close domain \"default\": it is a configured domain and always exists (remove it "
                 "from the options of gpushm-brokerd)");
  }
  EXPECT_THROW(brokers.open("../x"), error);
  EXPECT_THROW(brokers.close(".."), error);
}

TEST_F(node_domains, readings_name_each_domain) {
  serving_domains brokers(options());
  brokers.open("claim-a");
  client a = connect("claim-a");
  const auto readings = brokers.read();
  ASSERT_EQ(readings.size(), 2U);
  EXPECT_EQ(readings[0].domain, "claim-a");
  EXPECT_EQ(readings[0].counted.connections, 1U);
  EXPECT_EQ(readings[1].domain, "default");
  EXPECT_EQ(readings[1].counted.connections, 0U);
}

// ---- changes of the directories by pods and other processes ----

std::string text_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const error& why) {
    return why.what();
  }
  return "no error";
}

bool eventually(const std::function<bool()>& condition) {
  return gpushm_testing::eventually(condition, 10s);
}

TEST_F(node_domains, lock_in_domain_directory_is_ignored) {
  std::filesystem::create_directories(folder_ / "run/d/default");
  const base::unique_fd held(
      ::open((folder_ / "run/d/default/socket.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::flock(held.get(), LOCK_EX | LOCK_NB), 0);
  const serving_domains brokers(options());
  EXPECT_EQ(brokers.problem(), "");
  EXPECT_EQ(connect("default").broker().domain, "default");
  EXPECT_EQ(mode_of(folder_ / "run/locks"), 0700U);
}

TEST_F(node_domains, second_process_is_rejected) {
  const serving_domains first(options());
  EXPECT_EQ(text_of([&] { const serving_domains second(options()); }),
            "lock the run directory \"" + folder_ / "run/locks/brokerd.lock" +
                "\": another process serves the domains of this directory (stop it, or choose "
                "another directory: --run-dir DIR)");
  EXPECT_EQ(connect("default").broker().domain, "default");
}

TEST_F(node_domains, wrong_name_of_a_configured_domain_is_refused_and_changes_nothing) {
  for (const char* wrong : {"", ".", "..", ".hidden", "a/b", "../outside", "/tmp"}) {
    domain_set_options custom = options();
    custom.domains = {"default", wrong};
    EXPECT_THAT(text_of([&] { const serving_domains brokers(custom); }),
                HasSubstr("not a valid domain name"))
        << wrong;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
  }
}

TEST_F(node_domains, unserved_domain_is_retried_and_others_work) {
  std::filesystem::create_directories(folder_ / "run/d");
  std::filesystem::create_directory_symlink("/tmp", folder_ / "run/d/bad");
  domain_set_options custom = options();
  custom.domains = {"default", "bad"};
  custom.check_interval = 50ms;
  const serving_domains brokers(custom);
  EXPECT_EQ(connect("default").broker().domain, "default");
  EXPECT_THAT(brokers.problem(), StartsWith("domain bad is not served: create directory"));
  for (const reading& each : brokers.read()) {
    EXPECT_EQ(each.serving, each.domain == "default") << each.domain;
  }
  std::filesystem::remove(folder_ / "run/d/bad");
  EXPECT_TRUE(eventually([&] { return brokers.problem().empty(); }));
  EXPECT_EQ(connect("bad").broker().domain, "bad");
}

TEST_F(node_domains, removed_sockets_and_directories_are_made_again) {
  domain_set_options custom = options();
  custom.check_interval = 50ms;
  serving_domains brokers(custom);
  brokers.open("claim-a");
  client user = connect("claim-a");
  segment kept =
      user.create("w", {.size_bytes = 4'096, .device = "host", .lifetime = lifetime::persistent});
  kept.publish();
  const auto epoch = user.broker().epoch;
  const auto new_clients_find_it = [&] {
    try {
      client another = connect("claim-a");
      return another.broker().epoch == epoch && another.open("w").generation() == kept.generation();
    } catch (const error&) {
      return false;
    }
  };
  std::filesystem::remove(folder_ / "run/d/default/socket");
  EXPECT_TRUE(
      eventually([&] { return std::filesystem::exists(folder_ / "run/d/default/socket"); }));
  EXPECT_EQ(connect("default").broker().domain, "default");
  for (const char* file : {"/socket", "", "/socket"}) {
    std::filesystem::remove_all(folder_ / (std::string("run/d/claim-a") + file));
    EXPECT_TRUE(eventually(new_clients_find_it)) << file;
    EXPECT_EQ(user.list("w").size(), 1U) << "connected clients are not affected";
  }
  std::filesystem::rename(folder_ / "run/d/claim-a", folder_ / "run/d/claim-moved");
  std::filesystem::create_directory(folder_ / "run/d/claim-a");
  EXPECT_TRUE(eventually(new_clients_find_it));
  EXPECT_TRUE(eventually([&] { return brokers.problem().empty(); }));
  std::filesystem::remove(folder_ / "run/d/claim-a/socket");
  std::filesystem::create_directory(folder_ / "run/d/claim-a/socket");
  ASSERT_TRUE(eventually([&] { return !brokers.problem().empty(); }));
  EXPECT_EQ(user.list("w").size(), 1U);
  std::filesystem::remove(folder_ / "run/d/claim-a/socket");
  EXPECT_TRUE(eventually(new_clients_find_it));
  brokers.close("claim-a");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run/d/claim-a"));
}

TEST_F(node_domains, linked_or_foreign_directories_are_rejected) {
  std::filesystem::create_directories(folder_ / "elsewhere");
  std::filesystem::create_directories(folder_ / "run");
  std::filesystem::create_directory_symlink(folder_ / "elsewhere", folder_ / "run/d");
  EXPECT_THAT(text_of([&] { const serving_domains brokers(options()); }),
              StartsWith("create directory \"" + folder_ / "run/d" + "\": open: "));
  EXPECT_NE(mode_of(folder_ / "elsewhere"), 0700U);
  std::filesystem::remove(folder_ / "run/d");
  if (::geteuid() != 0) {
    GTEST_SKIP() << "only root can change the owner of a directory";
  }
  std::filesystem::create_directory(folder_ / "run/d");
  ASSERT_EQ(::chown((folder_ / "run/d").c_str(), 65'534, 65'534), 0);
  EXPECT_THAT(text_of([&] { const serving_domains brokers(options()); }),
              StartsWith("create directory \"" + folder_ / "run/d" +
                         "\": it exists and belongs to uid 65534"));
}

TEST_F(node_domains, empty_directory_of_old_domain_is_removed) {
  domain_set_options custom = options();
  custom.domains = {"default", "team-a"};
  { const serving_domains brokers(custom); }
  EXPECT_TRUE(std::filesystem::exists(folder_ / "run/d/team-a"));
  std::filesystem::create_directories(folder_ / "run/d/other/content");
  const serving_domains brokers(options());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run/d/team-a"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "run/d/other/content"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "run/d/default/socket"));
}

/// A TCP socket whose last close waits for data that no process reads.
class lingering_socket {
 public:
  explicit lingering_socket(std::chrono::seconds linger) {
    listener_ = base::unique_fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int small = 4'096;
    ::setsockopt(listener_.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(listener_.get(), 1), 0);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    socket_ = base::unique_fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    const struct linger wait { 1, static_cast<int>(linger.count()) };
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &wait, sizeof wait);
    const std::string data(1 << 20U, 'x');
    while (::send(socket_.get(), data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    }
  }
  [[nodiscard]] int fd() const { return socket_.get(); }
  /// Closes this process's copy.
  void close() { socket_.reset(); }

 private:
  base::unique_fd listener_;
  base::unique_fd socket_;
};

/// Sends the descriptor to the broker in an invalid packet, and closes this process's copy before
/// the broker closes its copy. False: the broker was faster and is not blocked.
bool send_descriptor(const std::string& socket_path, lingering_socket& socket) {
  const base::unique_fd to(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size());
  EXPECT_EQ(::connect(to.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = socket.fd();
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  const auto sent = ::sendmsg(to.get(), &message, MSG_NOSIGNAL);
  const auto start = std::chrono::steady_clock::now();
  socket.close();
  EXPECT_EQ(sent, 1);
  return std::chrono::steady_clock::now() - start < 1s;
}

TEST_F(node_domains, stuck_broker_delays_no_other_domain) {
  std::vector<std::unique_ptr<lingering_socket>> held;  // their other ends stay open
  std::chrono::steady_clock::time_point start;
  const auto since = [&start] { return std::chrono::steady_clock::now() - start; };
  {
    domain_set_options custom = options();
    custom.timeout = 2s;
    serving_domains brokers(custom);
    brokers.open("claim-a");
    bool stuck = false;
    for (int i = 0; i < 5 && !stuck; ++i) {
      held.push_back(std::make_unique<lingering_socket>(15s));
      stuck = send_descriptor(folder_ / "run/d/claim-a/socket", *held.back());
    }
    ASSERT_TRUE(stuck);
    std::this_thread::sleep_for(100ms);
    start = std::chrono::steady_clock::now();
    std::jthread closing([&brokers] { brokers.close("claim-a"); });
    std::this_thread::sleep_for(100ms);
    brokers.open("claim-b");
    EXPECT_EQ(connect("claim-b").broker().domain, "claim-b");
    EXPECT_GE(brokers.read().size(), 2U);
    EXPECT_EQ(brokers.problem(), "");
    EXPECT_LT(since(), gpushm_testing::scaled_timeout(2s));
    closing.join();
    EXPECT_LT(since(), gpushm_testing::scaled_timeout(4s));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "run/d/claim-a"));
  }
  EXPECT_LT(since(), gpushm_testing::scaled_timeout(10s));
}

}  // namespace
}  // namespace gpushm::domains
