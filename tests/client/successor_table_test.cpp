// SPDX-License-Identifier: Apache-2.0
// A client whose broker is replaced: what it uses of the dead broker's state table, and how it goes
// to the table of the next broker.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/page_size.hpp"
#include "base/files/unique_fd.hpp"
#include "client/session/connection.hpp"
#include "gpushm/gpushm.hpp"
#include "protocol/wire/state_table.hpp"
#include "tests/client/scripted_broker.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm::client_detail {
namespace {

using namespace std::chrono_literals;
using base::unique_fd;
using gpushm_testing::deadline_after;
using gpushm_testing::eventually;
using gpushm_tests::scripted_broker;

void write_word(int table, std::size_t offset, std::uint32_t value) {
  ASSERT_EQ(::pwrite(table, &value, sizeof value, static_cast<off_t>(offset)),
            static_cast<ssize_t>(sizeof value));
}

/// As the kernel marks it when a broker that can have a successor is killed.
void mark_dead(int table) {
  write_word(table, offsetof(wire::state_table_header, resumable), 1);
  write_word(table, offsetof(wire::state_table_header, owner_futex), FUTEX_OWNER_DIED);
}

/// What a successor sends.
scripted_broker::reply continued_with(std::vector<unique_fd> descriptors) {
  scripted_broker::reply result{{0, wire::continued{}}};
  result.descriptors = std::move(descriptors);
  result.late = true;
  return result;
}

std::vector<unique_fd> only(unique_fd file) {
  std::vector<unique_fd> result;
  result.push_back(std::move(file));
  return result;
}

/// Of each other request: it is done, after what `before` has sent.
scripted_broker::script done_after(std::function<std::vector<scripted_broker::reply>()> before) {
  return [before = std::move(before)](const wire::message& asked) {
    auto replies = before();
    replies.push_back({{asked.id, wire::done{}}});
    return replies;
  };
}

void ask(connection& client) {
  static_cast<void>(client.request(wire::remove{"w"}, {"test", {}}, deadline_after(20s)));
}

constexpr gpushm::generation step = 100;

TEST(successor_table, takes_the_place_of_the_table_before) {
  std::atomic<gpushm::generation> first = 0;
  const scripted_broker broker(done_after([&] {
    std::vector<scripted_broker::reply> replies;
    replies.push_back(continued_with(only(scripted_broker::state_table(first += step))));
    return replies;
  }));
  const auto client = connection::establish(broker.socket_path(), 20s);
  EXPECT_TRUE(client->has_current_states());
  EXPECT_EQ(client->state(3, 3), segment_state::live);
  EXPECT_EQ(client->state(3, step + 3), segment_state::removed);

  mark_dead(broker.last_table());
  EXPECT_FALSE(client->has_current_states());
  EXPECT_EQ(client->last_state(3, 3), segment_state::live);
  // Granted by the successor, on the other lane.
  EXPECT_EQ(client->last_state(3, step + 3), segment_state::live);
  EXPECT_TRUE(client->may_exist(3, step + 3));
  ask(*client);  // answered after the table was sent
  EXPECT_EQ(client->state(3, 3), segment_state::removed);
  EXPECT_TRUE(client->has_current_states());

  // Many of them, while other threads read.
  std::atomic<bool> ended = false;
  std::vector<std::jthread> readers;
  for (int i = 0; i != 3; ++i) {
    readers.emplace_back([&] {
      while (!ended) {
        EXPECT_NE(client->state(3, 1), segment_state::broker_gone);
      }
    });
  }
  for (int i = 0; i != 200; ++i) {
    ask(*client);
  }
  ASSERT_TRUE(eventually([&] { return client->state(3, first + 3) == segment_state::live; }, 20s));
  ended = true;
  readers.clear();
  EXPECT_TRUE(client->has_current_states());
  EXPECT_FALSE(client->may_exist(3, 3));
  EXPECT_FALSE(client->broken());
}

TEST(successor_table, that_cannot_be_used_ends_the_connection) {
  const auto with = [](std::size_t bytes, unsigned seals) {
    unique_fd file(::memfd_create("table", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
    EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, seals), 0);
    return only(std::move(file));
  };
  const std::function<std::vector<unique_fd>()> wrong[] = {
      [] { return std::vector<unique_fd>(); },
      [&] { return with(0, F_SEAL_SHRINK); },
      [&] { return with(wire::state_table_bytes(64), F_SEAL_SHRINK); },  // no header
      [&] { return with(wire::state_table_bytes(65), F_SEAL_SHRINK); },
      [&] { return with(wire::state_table_bytes(64), F_SEAL_GROW); },
      [] {
        unique_fd table = scripted_broker::state_table(step);
        const char other = 1;
        EXPECT_EQ(::pwrite(table.get(), &other, 1, offsetof(wire::state_table_header, epoch)), 1);
        return only(std::move(table));
      },
      [] {
        auto two = only(scripted_broker::state_table(step));
        two.push_back(scripted_broker::state_table(step));
        return two;
      },
  };
  for (const auto& make : wrong) {
    SCOPED_TRACE(&make - &wrong[0]);
    const scripted_broker broker(done_after([&] {
      std::vector<scripted_broker::reply> replies;
      replies.push_back(continued_with(make()));
      return replies;
    }));
    const auto client = connection::establish(broker.socket_path(), 20s);
    try {
      ask(*client);
    } catch (const error& why) {
      EXPECT_EQ(why.code(), errc::broker_gone);
    }
    EXPECT_TRUE(eventually([&] { return client->broken(); }, 20s));
    EXPECT_EQ(client->last_state(3, 3), segment_state::live) << "the table before is still mapped";
  }
}

/// The successor may have removed it before this client has the table that shows this.
TEST(successor_table, is_awaited_before_the_cache_is_used) {
  const std::uint64_t page = base::host_page_bytes();
  wire::opened reply;
  reply.segment.name = "w";
  reply.segment.generation = 5;
  reply.segment.slot = 5;
  reply.segment.size_bytes = page;
  reply.segment.allocated_bytes = page;
  reply.segment.chunk_count = 1;
  reply.segment.published = true;
  reply.segment.lifetime = lifetime::persistent;
  reply.chunk_bytes = {page};
  std::atomic<int> opens = 0;
  std::atomic<bool> has_successor = false;
  scripted_broker broker([&](const wire::message& asked) {
    std::vector<scripted_broker::reply> replies;
    ++opens;
    if (has_successor) {
      replies.push_back(continued_with(only(scripted_broker::state_table())));
    }
    scripted_broker::reply opened{{asked.id, reply}};
    opened.descriptors.push_back(scripted_broker::sealed_file(page));
    replies.push_back(std::move(opened));
    return replies;
  });
  auto user = client::connect({.socket_path = broker.socket_path(), .request_limit = 20'000ms});
  const segment used = user.open("w");
  static_cast<void>(user.open("w"));
  EXPECT_EQ(opens, 1) << "not answered by the cache";

  has_successor = true;
  mark_dead(broker.last_table());
  static_cast<void>(user.open("w"));
  EXPECT_EQ(opens, 2) << "answered with what the dead broker has left";
  EXPECT_TRUE(eventually(
      [&] {
        const int before = opens;
        static_cast<void>(user.open("w"));
        return opens == before;
      },
      20s))
      << "the cache is not used again";
  EXPECT_EQ(used.state(), segment_state::live);
}

}  // namespace
}  // namespace gpushm::client_detail
