// SPDX-License-Identifier: Apache-2.0
// How a client handles a broker's replies, also contradictory ones.
#include <gtest/gtest.h>
#include <malloc.h>

#include <functional>
#include <limits>
#include <thread>

#include "base/files/page_size.hpp"
#include "base/process/deadline.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/client/scripted_broker.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm {
namespace {

using namespace std::chrono_literals;
using gpushm_tests::scripted_broker;

// ---- contradictory answers ----

const std::uint64_t page = base::host_page_bytes();

/// One host segment of two chunks of one page each.
wire::opened valid_reply() {
  wire::opened reply;
  reply.segment.name = "w";
  reply.segment.generation = 5;
  reply.segment.slot = 5;
  reply.segment.size_bytes = 2 * page;
  reply.segment.allocated_bytes = 2 * page;
  reply.segment.chunk_count = 2;
  reply.segment.published = true;
  reply.chunk_bytes = {page, page};
  return reply;
}

/// Opens "w" from a broker that replies with `body` and `chunks` chunks.
std::optional<errc> open_with_reply(const wire::opened& body, std::size_t chunks) {
  scripted_broker broker([&](const wire::message& asked) {
    scripted_broker::reply reply{{asked.id, body}};
    for (std::size_t i = 0; i < chunks; ++i) {
      reply.descriptors.push_back(scripted_broker::sealed_file(page));
    }
    std::vector<scripted_broker::reply> replies;
    replies.push_back(std::move(reply));
    return replies;
  });
  auto client = client::connect({.socket_path = broker.socket_path(), .request_limit = 10'000ms});
  try {
    const segment opened = client.open("w");
    std::vector<std::byte> all(opened.size_bytes());
    opened.read(0, all);
    return std::nullopt;
  } catch (const error& why) {
    return why.code();
  }
}

TEST(reply, valid_is_mapped) {
  EXPECT_EQ(open_with_reply(valid_reply(), 2), std::nullopt);
}

struct contradiction {
  const char* name;
  std::function<void(wire::opened&)> make;
  std::size_t chunks = 2;
};
class contradictory_reply : public testing::TestWithParam<contradiction> {};

// With several of these an earlier version read past its mapping.
TEST_P(contradictory_reply, is_refused) {
  wire::opened reply = valid_reply();
  GetParam().make(reply);
  EXPECT_EQ(open_with_reply(reply, GetParam().chunks), errc::protocol_error);
}

constexpr auto most = std::numeric_limits<std::uint64_t>::max();
INSTANTIATE_TEST_SUITE_P(
    of,
    contradictory_reply,
    testing::Values(
        contradiction{"size", [](auto& a) { a.segment.size_bytes = 2 * page + 1; }},
        contradiction{"huge_size", [](auto& a) { a.segment.size_bytes = 1ULL << 63U; }},
        contradiction{"no_size", [](auto& a) { a.segment.size_bytes = 0; }},
        contradiction{"offset", [](auto& a) { a.segment.offset_bytes = 1; }},
        contradiction{"huge_offset", [](auto& a) { a.segment.offset_bytes = most; }},
        contradiction{"allocated", [](auto& a) { a.segment.allocated_bytes = page; }},
        contradiction{"allocated_more", [](auto& a) { a.segment.allocated_bytes = 3 * page; }},
        contradiction{"nothing_at_all",
                      [](auto& a) {
                        a.segment.size_bytes = 1;
                        a.segment.allocated_bytes = 0;
                        a.segment.chunk_count = 0;
                        a.chunk_bytes.clear();
                      },
                      0},
        contradiction{"no_chunks",
                      [](auto& a) {
                        a.segment.chunk_count = 0;
                        a.chunk_bytes.clear();
                      },
                      0},
        contradiction{"fewer_chunks", [](auto& a) { a.segment.chunk_count = 1; }},
        contradiction{"more_descriptors", [](auto& /*a*/) {}, 3},
        contradiction{"fewer_descriptors", [](auto& /*a*/) {}, 1},
        contradiction{"empty_chunk",
                      [](auto& a) {
                        a.chunk_bytes = {0, 2 * page};
                      }},
        contradiction{"chunks_that_overflow",
                      [](auto& a) {
                        a.chunk_bytes = {most, page + 1};
                      }},
        contradiction{"all_bytes_in_too_few_chunks", [](auto& a) { a.segment.chunk_count = 3; }},
        contradiction{"name", [](auto& a) { a.segment.name = "v"; }},
        contradiction{"generation_0", [](auto& a) { a.segment.generation = 0; }},
        contradiction{"generation", [](auto& a) { a.segment.generation = most; }},
        contradiction{"backend", [](auto& a) { a.segment.backend = backend::cuda_vmm; }},
        contradiction{"device", [](auto& a) { a.segment.device.kind = device_kind::gpu; }},
        contradiction{"bound_without_ticket",
                      [](auto& a) {
                        a.segment.backend = backend::cuda_ipc;
                        a.segment.device.kind = device_kind::gpu;
                        a.segment.chunk_count = 0;
                        a.chunk_bytes.clear();
                      },
                      0},
        contradiction{"ticket_of_a_host_segment", [](auto& a) { a.ticket = {std::byte{1}}; }}),
    [](const auto& each) { return std::string(each.param.name); });

TEST(reply, duplicate_for_one_name_is_refused) {
  scripted_broker broker([&](const wire::message& asked) {
    std::vector<scripted_broker::reply> replies;
    for (int i = 0; i < 2; ++i) {  // both for the first name
      replies.push_back({{asked.id, wire::failure{0, errc::no_such_segment, "no", "wait"}}});
    }
    return replies;
  });
  auto client = client::connect({.socket_path = broker.socket_path()});
  try {
    const std::vector<std::string> names{"a", "b"};
    static_cast<void>(client.open_many(names));
    FAIL();
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::protocol_error);
  }
}

TEST(reply, list_without_progress_ends) {
  scripted_broker broker([](const wire::message& asked) {
    std::vector<scripted_broker::reply> replies;
    replies.push_back({{asked.id, wire::listing{{valid_reply().segment}, true}}});
    return replies;
  });
  auto client = client::connect({.socket_path = broker.socket_path()});
  try {
    static_cast<void>(client.list());
    FAIL();
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::protocol_error);
  }
}

TEST(reply, peer_died_makes_try_open_return_null) {
  scripted_broker broker([](const wire::message& asked) {
    std::vector<scripted_broker::reply> replies;
    replies.push_back({{asked.id, wire::failure{0, errc::peer_died, "it died", "start it"}}});
    return replies;
  });
  auto client = client::connect({.socket_path = broker.socket_path()});
  EXPECT_EQ(client.try_open("w"), std::nullopt);
  try {
    static_cast<void>(client.open("w"));
    FAIL();
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::peer_died);
    EXPECT_STREQ(why.what(), "open \"w\": it died (start it)");
  }
}

// ---- with a broker ----

class client_with_broker : public testing::Test {
 protected:
  client_with_broker() { broker_.emplace(broker::start({.socket_path = path_})); }
  client connect() { return client::connect({.socket_path = path_}); }

  gpushm_testing::temp_dir directory_;
  std::string path_ = directory_ / "socket";
  std::optional<broker> broker_;
};

TEST_F(client_with_broker, memory_bounded_over_ended_segments) {
  client producer = connect();
  const auto rounds = [&](int count) {
    for (int i = 0; i < count; ++i) {
      static_cast<void>(producer.create("w", {.size_bytes = 4096, .device = "host"}));
    }
    return ::mallinfo2().uordblks;
  };
  const auto before = rounds(500);
  const auto after = rounds(3'000);
  // An earlier version leaked 528 bytes per round.
  EXPECT_LT(after, before + 300'000);
}

TEST_F(client_with_broker, metadata_visible_in_creator_process) {
  client both = connect();
  for (int i = 0; i < 200; ++i) {
    const std::string name = "w" + std::to_string(i);
    std::size_t seen = 0;
    std::jthread opener([&] { seen = both.open(name, {.timeout = 20'000ms}).metadata().size(); });
    segment created = both.create(name, {.size_bytes = 4096, .device = "host"});
    created.publish("some metadata");
    opener.join();
    ASSERT_EQ(seen, 13U) << "round " << i;
    ASSERT_EQ(created.metadata().size(), 13U);
  }
}

TEST_F(client_with_broker, caches_segments_opened_by_creator_process) {
  client both = connect();
  segment created =
      both.create("w", {.size_bytes = 4096, .device = "host", .lifetime = lifetime::persistent});
  created.publish();
  static_cast<void>(both.open("w"));
  created.reset();
  EXPECT_EQ(both.cache_stats().kept_entries, 1U);
  segment unopened =
      both.create("v", {.size_bytes = 4096, .device = "host", .lifetime = lifetime::persistent});
  unopened.publish();
  unopened.reset();
  EXPECT_EQ(both.cache_stats().kept_entries, 1U) << "not opened by name";
}

// ---- timeouts ----

TEST(deadline, saturates_instead_of_overflowing) {
  using clock = std::chrono::steady_clock;
  const auto now = clock::now();
  EXPECT_EQ(base::later(now, std::chrono::milliseconds::max()), clock::time_point::max());
  EXPECT_EQ(base::later(now, 9'223'372'036'854ms), clock::time_point::max());
  EXPECT_EQ(base::later(clock::time_point::max(), 1ms), clock::time_point::max());
  EXPECT_EQ(base::later(now, -5ms), now);
  EXPECT_EQ(base::later(now, 5ms), now + 5ms);
  EXPECT_GT(base::time_left(clock::time_point::max()), 2'000'000h);
  EXPECT_EQ(base::time_left(now - 5ms), 0ms);
}

class long_wait : public client_with_broker,
                  public testing::WithParamInterface<std::chrono::milliseconds> {};

// Timeouts that overflowed in an earlier version: 292 years, and the maximum.
TEST_P(long_wait, waits) {
  client waiter = client::connect({.socket_path = path_, .request_limit = GetParam()});
  client producer = connect();
  std::jthread late([&] {
    std::this_thread::sleep_for(100ms);
    producer.create("w", {.size_bytes = 4096, .device = "host", .lifetime = lifetime::persistent})
        .publish();
  });
  EXPECT_EQ(waiter.open("w", {.timeout = GetParam()}).size_bytes(), 4096U);
  const std::vector<std::string> names{"w"};
  EXPECT_TRUE(waiter.open_many(names, {.timeout = GetParam()}).at(0));
  late.join();
  auto events = waiter.subscribe();
  std::jthread later([&] {
    std::this_thread::sleep_for(100ms);
    producer.remove("w");
  });
  EXPECT_TRUE(events.next(GetParam()));
}
INSTANTIATE_TEST_SUITE_P(of,
                         long_wait,
                         testing::Values(9'223'372'036'854ms,
                                         std::chrono::milliseconds::max(),
                                         std::chrono::milliseconds(5'000'000'000)));

}  // namespace
}  // namespace gpushm
