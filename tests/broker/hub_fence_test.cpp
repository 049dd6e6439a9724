// SPDX-License-Identifier: Apache-2.0
// Fences announced in Hello, and resumption of lost connections.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/broker/hub_world.hpp"

namespace gpushm::broker_detail {
namespace {

using namespace testing_world;
using std::chrono::milliseconds;

base::unique_fd own_pidfd() {
  return base::unique_fd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
}

/// The read end of a pipe without writers.
base::unique_fd pipe_end() {
  std::array<int, 2> ends{-1, -1};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  ::close(ends[1]);
  return base::unique_fd(ends[0]);
}

class hub_fence : public hub_test {
 protected:
  static wire::hello with(fence kind, const wire::session_token& resume = {}) {
    wire::hello message;
    message.fence = kind;
    message.resume = resume;
    return message;
  }
  wire::welcome greet_with(core::session_id session,
                           fence kind,
                           const wire::session_token& resume = {}) {
    return expect<wire::welcome>(
        kind == fence::none
            ? round_trip(session, with(kind, resume))
            : round_trip(session, with(kind, resume), descriptors(own_pidfd(), pipe_end())));
  }
  wire::segment stat(core::session_id session, const std::string& name) {
    return expect<wire::listing>(round_trip(session, wire::stat{name})).segments.at(0);
  }
};

TEST_F(hub_fence, hello_sets_the_fence) {
  const auto none = accept();
  const auto proven = accept();
  const auto unproven = accept();
  EXPECT_EQ(greet_with(none, fence::none).fence, fence::none);
  const auto welcome = greet_with(proven, fence::proven);
  EXPECT_EQ(welcome.fence, fence::proven);
  EXPECT_EQ(welcome.fence_delay_ms, 5'000U);
  EXPECT_FALSE(welcome.resumed);
  EXPECT_NE(welcome.token, wire::session_token{});
  EXPECT_EQ(greet_with(unproven, fence::unproven).fence, fence::unproven);
  EXPECT_FALSE(out_.fences.contains(none));
  EXPECT_EQ(out_.fences[proven], fence::proven);
  EXPECT_EQ(out_.fences[unproven], fence::unproven);
  expect_nothing_left();
}

TEST_F(hub_fence, wrong_descriptors_are_refused_and_closed) {
  const auto session = accept();
  EXPECT_EQ(failure(round_trip(session, with(fence::proven))),
            "wrong_descriptor_count: 0 descriptors received with a message that announces 2 (send "
            "exactly the announced descriptors)");
  EXPECT_EQ(failure(round_trip(session, with(fence::none), descriptors(own_pidfd(), pipe_end()))),
            "wrong_descriptor_count: 2 descriptors received with a message that announces 0 (send "
            "exactly the announced descriptors)");
  const std::string kinds =
      "wrong_descriptor_kind: the descriptors of Hello are not a pidfd and a pipe (send a pidfd of "
      "the client and the read end of its life pipe)";
  EXPECT_EQ(failure(round_trip(session, with(fence::proven), descriptors(pipe_end(), own_pidfd()))),
            kinds);
  EXPECT_EQ(
      failure(round_trip(session, with(fence::proven), descriptors(own_pidfd(), memfd(4096)))),
      kinds);
  EXPECT_TRUE(out_.fences.empty());
  greet_with(session, fence::proven);  // a correct Hello still succeeds
  expect_nothing_left();
}

TEST_F(hub_fence, leases_stay_after_a_violation) {
  const auto session = accept();
  const auto other = greet();
  greet_with(session, fence::proven);
  make(session, "kv");
  now_ += milliseconds(5);
  receive(session, std::vector<std::byte>(3));
  EXPECT_TRUE(out_.is_dropped(session));
  EXPECT_TRUE(lose(session));  // the connection is closed, too
  now_ += milliseconds(40);
  const auto shown = stat(other, "kv");
  EXPECT_FALSE(shown.creator_alive);
  EXPECT_EQ(shown.ending, 1U);
  EXPECT_EQ(shown.ending_pid, 101);
  EXPECT_EQ(shown.ending_ms, 40U);
  EXPECT_EQ(shown.ending_waits, fence_wait::process);
  EXPECT_EQ(hub_.statistics().ending_connections, 1U);
  hub_.hang_up(session);
  EXPECT_EQ(hub_.statistics().ending_connections, 0U);
  EXPECT_EQ(failure(round_trip(other, wire::stat{"kv"})),
            "no_such_segment: no such segment in domain default (`gpushm ls` lists segments)");
  expect_nothing_left();
}

TEST_F(hub_fence, goodbye_ends_everything_immediately) {
  const auto session = accept();
  greet_with(session, fence::proven);
  make(session, "kv");
  send_request(session, wire::bye{});
  EXPECT_FALSE(lose(session));
  EXPECT_EQ(hub_.domain().segment_count(), 0U);
  expect_nothing_left();
}

/// Which are looked at for each description, while any session waits for its fence.
TEST_F(hub_fence, list_of_segments_with_many_leases_has_shorter_pages) {
  constexpr std::size_t segments = 100;
  constexpr std::size_t connections = 170;
  constexpr std::size_t each_page = 16'384 / (connections + 1);
  const auto creator = greet();
  std::vector<std::string> names;
  for (std::size_t i = 0; i < segments; ++i) {
    names.push_back("kv " + std::to_string(i));
    make(creator, names.back());
  }
  core::session_id last = 0;
  for (std::size_t i = 0; i < connections; ++i) {
    last = greet({300, 3000, true});
    session& session = *hub_.find(last);
    hub_.receive(session,
                 wire::encode({++request_, wire::open_many{names, 0, 0}}),
                 succession::not_kept({}),
                 now_);
    while (session.rest) {
      hub_.resume(session);
    }
    ASSERT_EQ(take(last).size(), segments);
  }
  ASSERT_TRUE(lose(last));
  std::set<std::string> listed;
  std::string after;
  for (std::size_t pages = 1;; ++pages) {
    const auto page = expect<wire::listing>(round_trip(creator, wire::list{"", after}));
    ASSERT_FALSE(page.segments.empty());
    EXPECT_LE(page.segments.size(), each_page);
    for (const wire::segment& each : page.segments) {
      EXPECT_EQ(each.ending, 1U);
      EXPECT_TRUE(listed.insert(each.name).second);
    }
    after = page.segments.back().name;
    if (!page.more) {
      EXPECT_EQ(pages, (segments + each_page - 1) / each_page);
      break;
    }
  }
  EXPECT_EQ(listed.size(), segments);
}

TEST_F(hub_fence, leases_of_many_connections_are_unfenced_in_turns) {
  constexpr int count = 300;
  const auto creator = greet();
  make(creator, "kv");
  for (int i = 0; i < count; ++i) {
    const auto member = greet({300, 3000, true});
    expect<wire::opened>(round_trip(member, wire::open{"kv", 0, 0}));
    ASSERT_TRUE(lose(member));
  }
  const auto operators = greet({1, 42, true});
  session& session = *hub_.find(operators);
  const auto unfence = wire::encode({++request_, wire::unfence{"kv"}});
  EXPECT_FALSE(hub_.receive(session, unfence, succession::not_kept({}), now_));
  EXPECT_EQ(hub_.domain().ending_count(), std::size_t{count - 256});
  EXPECT_TRUE(take(operators).empty());
  EXPECT_TRUE(hub_.receive(session, unfence, succession::not_kept({}), now_));
  expect<wire::done>(take(operators));
  EXPECT_EQ(hub_.domain().ending_count(), 0U);
  EXPECT_EQ(hub_.domain().lease_count(), 1U);
}

TEST_F(hub_fence, many_leases_are_resumed_before_the_next_request) {
  constexpr int count = 600;
  const auto lost = accept();
  const auto token = greet_with(lost, fence::none).token;
  gpushm::generation kept = 0;
  for (int i = 0; i < count; ++i) {
    kept = reserve(lost, std::to_string(i));
  }
  EXPECT_TRUE(lose(lost));
  const auto successor = accept();
  session& session = *hub_.find(successor);
  hub_.receive(session,
               wire::encode({++request_, with(fence::none, token)}),
               succession::not_kept({}),
               now_);
  EXPECT_TRUE(expect<wire::welcome>(take(successor)).resumed);
  hub_.hang_up(lost);  // its process has ended
  int turns = 0;
  for (; session.resumes && turns < count; ++turns) {
    EXPECT_NE(hub_.find(lost), nullptr);
    hub_.resume(session);
  }
  EXPECT_EQ(turns, count / 256);
  EXPECT_EQ(hub_.find(lost), nullptr);
  EXPECT_EQ(hub_.domain().lease_count(), std::size_t{count});
  expect<wire::done>(round_trip(successor, wire::keep{{kept}, {1}, false}));
  while (hub_.has_work()) {
    hub_.work();
  }
  EXPECT_EQ(hub_.domain().segment_count(), 1U);
  expect_nothing_left();
}

TEST_F(hub_fence, token_of_a_lost_connection_resumes_once) {
  const auto session = accept();
  const auto token = greet_with(session, fence::proven).token;
  const auto created = make(session, "kv");
  const auto successor = accept();
  EXPECT_FALSE(greet_with(successor, fence::proven, token).resumed);  // not lost yet
  EXPECT_TRUE(lose(session));
  auto guessed = token;
  guessed.back() ^= 1U;
  const auto guesser = accept();
  EXPECT_FALSE(greet_with(guesser, fence::proven, guessed).resumed);

  const auto second = accept();
  EXPECT_TRUE(greet_with(second, fence::proven, token).resumed);
  EXPECT_EQ(hub_.find(session), nullptr) << "no longer waits for its fence";
  const auto third = accept();
  EXPECT_FALSE(greet_with(third, fence::proven, token).resumed);
  expect<wire::done>(round_trip(second, wire::keep{{created}, {1}, false}));
  EXPECT_EQ(failure(round_trip(second, wire::keep{})),
            "invalid_argument: the session resumed no other session, or has already sent Keep "
            "(send Keep once, after a Welcome with resumed)");
  EXPECT_EQ(stat(third, "kv").ending, 0U);
  EXPECT_TRUE(stat(third, "kv").creator_alive);
  hub_.hang_up(session);  // already erased
  EXPECT_EQ(stat(third, "kv").generation, created);
  expect_nothing_left();
}

TEST_F(hub_fence, unfence_is_counted) {
  const auto session = accept();
  greet_with(session, fence::proven);
  make(session, "kv");
  const auto operator_ = greet({301, broker_uid, true});
  EXPECT_EQ(failure(round_trip(operator_, wire::unfence{"kv"})),
            "invalid_argument: none of its leases waits for a process to exit (`gpushm stat` shows "
            "which leases do)");
  EXPECT_EQ(hub_.statistics().unfenced, 0U);
  EXPECT_TRUE(lose(session));
  expect<wire::done>(round_trip(operator_, wire::unfence{"kv"}));
  EXPECT_EQ(hub_.statistics().unfenced, 1U);
  EXPECT_EQ(hub_.statistics().ending_connections, 0U);
  EXPECT_EQ(hub_.domain().segment_count(), 0U);
  expect_nothing_left();
}

}  // namespace
}  // namespace gpushm::broker_detail
