// SPDX-License-Identifier: Apache-2.0
// Descriptors whose close blocks, and which files may have them.
#include "succession/recorder/own_table.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "broker/descriptors/descriptor_receiver.hpp"
#include "gpushm/error.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "succession/journal/journal.hpp"
#include "succession/recorder/takeover_state.hpp"
#include "succession/records/records.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/raw_session/traps.hpp"

namespace gpushm::broker_detail {
namespace {

using namespace std::chrono_literals;

/// Whether `call` returns, although the close of what it closes blocks for much longer.
template <typename Call>
bool returns(Call&& call) {
  const auto done = std::make_shared<std::promise<void>>();
  auto future = done->get_future();
  std::thread([done, what = std::forward<Call>(call)]() mutable {
    what();
    done->set_value();
  }).detach();
  return future.wait_for(20s) == std::future_status::ready;
}

/// Sends one packet with a descriptor.
void send_with(int socket, int descriptor) {
  const std::array<std::byte, 4> text{};
  const std::array<int, 1> descriptors{descriptor};
  ASSERT_EQ(transport::send_packet(socket, text, descriptors), transport::send_result::sent);
}

TEST(close_apart, closes_everything_and_does_not_wait) {
  gpushm_testing::lingering_socket first(600s);
  gpushm_testing::lingering_socket second(600s);
  base::unique_fd file(::eventfd(0, EFD_CLOEXEC));
  const std::array numbers{first.trap.get(), second.trap.get(), file.get()};
  std::vector<base::unique_fd> files;
  files.push_back(std::move(first.trap));
  files.push_back(std::move(second.trap));
  files.push_back(std::move(file));
  const auto kept = std::make_shared<std::vector<base::unique_fd>>(std::move(files));
  ASSERT_TRUE(returns([kept] { succession::close_apart(std::move(*kept)); }));
  for (const int each : numbers) {
    EXPECT_EQ(::fcntl(each, F_GETFD), -1) << each;
  }
}

/// The number of threads of that name.
std::size_t threads_named(const std::string& name) {
  std::size_t result = 0;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(each.path() / "comm");
    std::string line;
    result += std::getline(file, line) && line == name ? 1U : 0U;
  }
  return result;
}

/// A member chooses how many: nothing is charged for connections that are refused.
TEST(close_apart, keeps_no_thread_for_lingering_sockets) {
  std::vector<gpushm_testing::lingering_socket> traps;
  std::vector<transport::packet_socket_pair> members;
  for (int i = 0; i < 8; ++i) {
    traps.emplace_back(600s);
    std::vector<base::unique_fd> one;
    if (i % 2 == 0) {
      one.push_back(std::move(traps.back().trap));
    } else {  // unread, as in a connection that is refused
      members.push_back(transport::connected_pair());
      send_with(members.back().first.get(), traps.back().trap.get());
      traps.back().trap.reset();
      one.push_back(members.back().second.release());
    }
    succession::close_apart(std::move(one));
  }
  EXPECT_TRUE(gpushm_testing::eventually([] { return threads_named("gpushm-leftover") == 0; },
                                         std::chrono::seconds(30)));
}

TEST(close_apart, closes_nothing_else) {
  const base::unique_fd stays(::eventfd(0, EFD_CLOEXEC));
  std::vector<base::unique_fd> all;
  all.emplace_back(::eventfd(0, EFD_CLOEXEC));
  succession::close_apart(std::move(all));
  succession::close_apart({});
  EXPECT_NE(::fcntl(stays.get(), F_GETFD), -1);
}

/// What is left of a predecessor and cannot be used.
TEST(read_takeover_states, does_not_wait_for_what_it_closes) {
  const auto inherited = std::make_shared<std::vector<keeper::named_descriptor>>();
  std::vector<gpushm_testing::lingering_socket> traps;
  for (const char* const name : {"no-name", "d1.a", "d1.b"}) {
    traps.emplace_back(600s);
    inherited->push_back({name, std::move(traps.back().trap)});
  }
  EXPECT_TRUE(returns([inherited] {
    const auto all = succession::read_takeover_states(std::move(*inherited));
    EXPECT_EQ(all.size(), 1U);
    EXPECT_FALSE(all.at("d1")) << "it has no journal";
  }));
}

/// What a later version has recorded is neither skipped nor dropped: that version can still
/// continue it, however often this one was started.
TEST(read_takeover_states, leaves_a_domain_that_needs_a_later_version_as_it_is) {
  journal::journal log = journal::journal::create(1U << 20U);
  const auto record = [&](std::uint32_t min_reader) {
    records::broker_record self;
    self.domain = "default";
    self.slots = 8;
    self.min_reader = min_reader;
    records::encoder encoder;
    log.put(records::key_of(records::kind::broker), encoder.encode(std::move(self)));
    log.commit();
  };
  const auto read = [&] {
    std::vector<keeper::named_descriptor> inherited;
    inherited.push_back({"d1+1", base::unique_fd(::dup(log.descriptor()))});
    return succession::read_takeover_states(std::move(inherited));
  };
  record(records::reader + 1);
  // In a form that this version cannot read.
  const auto unknown = records::key_of({core::record_kind::segment, 7});
  log.put(unknown, std::vector<std::byte>(3, std::byte{0xFF}));
  log.commit();
  for (unsigned i = 0; i != 3 * succession::max_failed_starts; ++i) {
    try {
      static_cast<void>(read());
      FAIL() << "continued";
    } catch (const error& why) {
      ASSERT_EQ(why.code(), errc::unsupported_version);
      ASSERT_EQ(why.object(), "default");
    }
  }
  log.erase(unknown);
  record(records::reader);
  const auto all = read();
  ASSERT_TRUE(all.at("d1"));
  EXPECT_EQ(all.at("d1")->broker.domain, "default");
}

/// The thread of the first one is blocked by what it has sent. The packet of the second one waits,
/// and those of others do not.
TEST(processes_that_are_not_vouched_for, share_one_queue_of_descriptors) {
  descriptor_receiver receiver;
  gpushm_testing::lingering_socket blocking(600s);
  auto first = transport::connected_pair();
  send_with(first.first.get(), blocking.trap.get());
  blocking.trap.reset();  // not the last copy
  succession::kept_fd closed(std::move(first.second));
  ASSERT_TRUE(receiver.close_elsewhere({"process 1", false}, closed, 1));
  const base::unique_fd file(::eventfd(0, EFD_CLOEXEC));
  const auto second = transport::connected_pair();
  send_with(second.first.get(), file.get());
  ASSERT_TRUE(receiver.fetch(2, {"process 2", false}, second.second.get(), 1));
  for (std::uint64_t number = 3; number < 6; ++number) {
    const auto other = transport::connected_pair();
    send_with(other.first.get(), file.get());
    ASSERT_TRUE(receiver.fetch(number, {"uid 5", true}, other.second.get(), 1));
    ASSERT_TRUE(transport::wait_readable(receiver.descriptor(), 20s));
    const auto got = receiver.next();
    ASSERT_TRUE(got);
    ASSERT_EQ(got->session, number);
  }
}

/// Until then they are charged.
TEST(sockets_of_ended_connections, are_reported_when_they_are_closed) {
  descriptor_receiver receiver;
  const base::unique_fd file(::eventfd(0, EFD_CLOEXEC));
  auto ended = transport::connected_pair();
  send_with(ended.first.get(), file.get());
  succession::kept_fd socket(std::move(ended.second));
  ASSERT_TRUE(receiver.close_elsewhere({"uid 5", true}, socket, 7));
  EXPECT_FALSE(socket);
  ASSERT_TRUE(transport::wait_readable(receiver.descriptor(), 20s));
  const auto got = receiver.next();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->closed, 7U);
  std::array<std::byte, 4> text{};
  EXPECT_EQ(transport::receive_packet(ended.first.get(), text).status,
            transport::receive_status::closed);
}

class unread_packets : public testing::Test {
 protected:
  void send(std::size_t bytes, bool with_descriptor = false) {
    const std::array<std::byte, 4> text{};
    const std::array<int, 1> descriptors{file_.get()};
    ASSERT_EQ(transport::send_packet(pair_.first.get(),
                                     std::span(text).first(bytes),
                                     std::span(descriptors).first(with_descriptor ? 1 : 0)),
              transport::send_result::sent);
  }
  /// As the broker does it when it closes a connection.
  bool shut_down_and_drain() {
    ::shutdown(pair_.second.get(), SHUT_RDWR);
    return drain(pair_.second.get());
  }

  transport::packet_socket_pair pair_ = transport::connected_pair();
  base::unique_fd file_{::eventfd(0, EFD_CLOEXEC)};
};

TEST_F(unread_packets, without_descriptors_are_removed) {
  send(4);
  send(0);
  send(1);
  EXPECT_TRUE(shut_down_and_drain());
}

TEST_F(unread_packets, of_a_peer_that_has_died_are_removed) {
  send(4);
  pair_.first.reset();
  EXPECT_TRUE(shut_down_and_drain());
}

TEST_F(unread_packets, with_descriptors_behind_others_are_noticed) {
  send(4);
  send(4, true);
  EXPECT_FALSE(shut_down_and_drain());
}

/// Which looks like the end of file.
TEST_F(unread_packets, with_descriptors_behind_an_empty_one_are_noticed) {
  send(0);
  send(0, true);
  EXPECT_FALSE(shut_down_and_drain());
}

TEST_F(unread_packets, that_are_empty_are_removed) {
  EXPECT_TRUE(shut_down_and_drain());
}

}  // namespace
}  // namespace gpushm::broker_detail
