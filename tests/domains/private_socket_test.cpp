// SPDX-License-Identifier: Apache-2.0
// The private socket: both sides, in one process.
#include "domains/protocol/private_socket.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "domains/serve/domain_set.hpp"
#include "domains/serve/service.hpp"
#include "gpushm/gpushm.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::domains {
namespace {

using namespace std::chrono_literals;

class private_sockets : public ::testing::Test {
 protected:
  void start() {
    domain_set_options options;
    options.run_dir = run_dir_;
    options.domains = {"default"};
    domains_.emplace(options);
    domains_->serve();
    service_.emplace(*domains_, run_dir_);
  }
  void stop() {
    service_.reset();
    domains_.reset();
  }
  [[nodiscard]] static std::vector<std::string> names(const std::vector<reading>& readings) {
    std::vector<std::string> result;
    for (const reading& each : readings) {
      result.push_back(each.domain);
    }
    return result;
  }
  [[nodiscard]] static errc code_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const error& why) {
      return why.code();
    }
    return {};
  }

  gpushm_testing::temp_dir folder_;
  const std::string run_dir_ = folder_ / "run";
  const private_socket client_{run_dir_};
  std::optional<domain_set> domains_;
  std::optional<service> service_;
};

TEST_F(private_sockets, opens_reads_and_closes) {
  start();
  const std::string directory = client_.open("claim-a", 5s);
  EXPECT_EQ(directory, run_dir_ + "/d/claim-a");
  const auto member = client::connect({.socket_path = directory + "/socket"});
  const auto readings = client_.read(5s);
  EXPECT_THAT(names(readings), ::testing::ElementsAre("claim-a", "default"));
  EXPECT_EQ(readings[0].counted.connections, 1U);
  EXPECT_TRUE(readings[0].serving);
  client_.close("claim-a", 5s);
  EXPECT_FALSE(std::filesystem::exists(directory));
  EXPECT_THAT(names(client_.read(5s)), ::testing::ElementsAre("default"));
}

TEST_F(private_sockets, errors_are_those_of_the_domains) {
  start();
  EXPECT_EQ(code_of([&] { client_.close("default", 5s); }), errc::invalid_argument);
  EXPECT_EQ(code_of([&] { static_cast<void>(client_.open("../x", 5s)); }), errc::invalid_argument);
  EXPECT_EQ(code_of([&] {
              client_.lose_device({"", "0000:18:00.0"}, 5s);
            }),
            errc::invalid_argument);
}

TEST_F(private_sockets, many_domains_are_read_in_pages) {
  start();
  std::vector<std::string> expected{"default"};
  for (int i = 0; i < 100; ++i) {
    const std::string name = "old-" + std::to_string(i);
    std::filesystem::create_directory(run_dir_ + "/d/" + name);
    expected.push_back(name);
  }
  EXPECT_THAT(names(client_.read(5s)), ::testing::UnorderedElementsAreArray(expected));
}

TEST_F(private_sockets, waits_for_a_broker_that_is_being_replaced) {
  start();
  stop();
  auto asked = std::async(std::launch::async, [&] { return client_.read(20s).size(); });
  std::this_thread::sleep_for(100ms);
  start();
  EXPECT_EQ(asked.get(), 1U);
}

TEST_F(private_sockets, nobody_there_is_an_error_at_the_deadline) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(code_of([&] { static_cast<void>(client_.read(100ms)); }), errc::broker_unreachable);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, gpushm_testing::wait_limit(5s));
}

TEST_F(private_sockets, only_the_group_can_reach_it) {
  start();
  struct stat about {};
  ASSERT_EQ(::stat(private_directory(run_dir_).c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777U, 0750U);
  ASSERT_EQ(::stat(private_socket_path(run_dir_).c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777U, 0660U);
}

/// More silent clients than there are threads: they are dropped after a second.
TEST_F(private_sockets, silent_clients_do_not_block_it) {
  start();
  std::vector<base::guarded_fd> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(transport::connect_packet_socket(private_socket_path(run_dir_), 5s));
  }
  EXPECT_EQ(client_.read(20s).size(), 1U);
}

TEST_F(private_sockets, foreign_packets_get_an_error) {
  start();
  const auto socket = transport::connect_packet_socket(private_socket_path(run_dir_), 5s);
  const std::vector<std::byte> packet(100, std::byte{0x55});
  ASSERT_EQ(transport::send_packet(socket.get(), packet, {}), transport::send_result::sent);
  ASSERT_TRUE(transport::wait_readable(socket.get(), 5s));
  std::vector<std::byte> buffer(max_message_bytes);
  const auto got = transport::receive_packet(socket.get(), buffer);
  ASSERT_EQ(got.status, transport::receive_status::packet);
  EXPECT_EQ(std::get<error>(decode_reply(got.packet)).code(), errc::protocol_error);
  EXPECT_EQ(client_.read(5s).size(), 1U);
}

TEST_F(private_sockets, concurrent_calls_for_one_domain_agree) {
  start();
  std::vector<std::future<std::string>> sockets;
  for (int i = 0; i < 16; ++i) {
    sockets.push_back(std::async(std::launch::async, [&] { return client_.open("claim-a", 20s); }));
  }
  for (auto& each : sockets) {
    EXPECT_EQ(each.get(), run_dir_ + "/d/claim-a");
  }
  EXPECT_EQ(client_.read(5s).size(), 2U);
}

}  // namespace
}  // namespace gpushm::domains
