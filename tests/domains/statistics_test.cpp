// SPDX-License-Identifier: Apache-2.0
// What operators see of gpushm-brokerd and of each domain.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "domains/protocol/private_socket.hpp"
#include "domains/serve/domain_set.hpp"
#include "domains/serve/service.hpp"
#include "domains/serve/start_counts.hpp"
#include "domains/serve/statistics_of.hpp"
#include "gpushm/gpushm.hpp"
#include "gpushm/versions.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/codec.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::domains {
namespace {

using gpushm_testing::eventually;
using namespace std::chrono_literals;

constexpr std::uint64_t mib = 1024 * 1024;

errc code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const error& why) {
    return why.code();
  }
  return {};
}

const usage* budget_of(const std::vector<usage>& rows, const std::string& resource) {
  const auto at = std::find_if(
      rows.begin(), rows.end(), [&](const usage& each) { return each.resource == resource; });
  return at == rows.end() ? nullptr : &*at;
}

std::uint64_t refusals_of(const domain_statistics& statistics,
                          const std::string& request,
                          errc code) {
  std::uint64_t count = 0;
  for (const refusal_statistics& each : statistics.refusals) {
    count += each.request == request && each.code == code ? each.count : 0;
  }
  return count;
}

std::uint64_t handled(const domain_statistics& statistics, const std::string& request) {
  std::uint64_t count = 0;
  for (const request_latency& each : statistics.latencies) {
    if (each.request == request) {
      for (const std::uint64_t some : each.counts) {
        count += some;
      }
      EXPECT_GT(each.sum_ns, 0U) << request;
    }
  }
  return count;
}

/// However many principals there are, the rows add up to the domain.
void expect_conserved(const domain_statistics& statistics) {
  const struct {
    const char* resource;
    std::uint64_t principal_statistics::*value;
  } columns[] = {{"connections", &principal_statistics::connections},
                 {"segments", &principal_statistics::segments},
                 {"host_bytes", &principal_statistics::host_bytes},
                 {"memory_bytes", &principal_statistics::memory_bytes},
                 {"descriptors", &principal_statistics::descriptors},
                 {"subscriptions", &principal_statistics::subscriptions},
                 {"waiting_opens", &principal_statistics::waiting_opens}};
  for (const auto& each : columns) {
    std::uint64_t sum = 0;
    for (const principal_statistics& row : statistics.principals) {
      sum += row.*each.value;
    }
    const usage* const whole = budget_of(statistics.budgets, each.resource);
    ASSERT_NE(whole, nullptr) << each.resource;
    EXPECT_EQ(sum, whole->used) << each.resource;
  }
}

TEST(statistics_of_a_domain, has_the_largest_principals_and_the_sum_of_the_others) {
  core::domain domain("default", 42, {});
  constexpr std::uint32_t pods = max_principals + 50;
  for (std::uint32_t i = 1; i <= pods; ++i) {
    core::peer who{static_cast<std::int32_t>(i), 1'000 + i, true};
    who.principal = {"pod " + std::to_string(i), true};
    domain.connect(i, who);
    core::reservation wanted;
    wanted.name = "s" + std::to_string(i);
    wanted.size_bytes = wanted.allocated_bytes = 4096 * std::uint64_t{i};
    wanted.device.kind = device_kind::host;
    wanted.chunk_count = 1;
    domain.reserve(i, wanted);
    domain.pending().clear();
  }
  domain_statistics got = statistics_of(domain, {}, {});
  ASSERT_EQ(got.principals.size(), max_principals + 1);
  EXPECT_EQ(got.principals.front().name, "pod " + std::to_string(pods));
  EXPECT_EQ(got.principals.front().host_bytes, 4096U * pods);
  EXPECT_EQ(got.principals.front().connections, 1U);
  EXPECT_EQ(got.principals.front().segments, 1U);
  EXPECT_EQ(got.principals.back().name, other_principals);
  EXPECT_EQ(got.principals.back().segments, 50U);
  EXPECT_EQ(got.principals.back().host_bytes, 4096U * (50 * 51 / 2));
  EXPECT_EQ(got.others, 50U);
  expect_conserved(got);

  core::segment_survey survey;
  while (domain.survey_some(survey)) {
  }
  add_survey(got, survey);
  ASSERT_EQ(got.kinds.size(), 1U);
  EXPECT_EQ(got.kinds[0].name, "host");
  EXPECT_EQ(got.kinds[0].amount.segments, pods);
  EXPECT_EQ(got.unheld, segment_amount{});
  EXPECT_EQ(got.fence_waits, segment_amount{});
  EXPECT_LE(encode(reply(got)).size(), max_message_bytes);
}

TEST(start_counts, are_kept_and_begin_again_when_the_file_is_damaged) {
  using keeper::start_reason;
  const gpushm_testing::temp_dir folder;
  const std::string path = folder / "starts";
  start_counts counts = read_start_counts(path);
  EXPECT_EQ(counts, start_counts{});
  for (const auto why :
       {start_reason::ordinary, start_reason::takeover, start_reason::failed_takeover}) {
    add_start(counts, path, why);
    EXPECT_EQ(read_start_counts(path), counts);
  }
  EXPECT_EQ(counts, (start_counts{3, 1, 1}));
  for (const char* text : {"", "3", "3 1", "3 1 1", "3 1 1 1 ", "3 1 x ", "-3 1 1 "}) {
    std::ofstream(path) << text;
    EXPECT_EQ(read_start_counts(path), start_counts{}) << text;
  }
  const std::string nowhere = folder / "no/such/folder";
  add_start(counts, nowhere, start_reason::ordinary);
  EXPECT_EQ(counts.starts, 4U) << "counted although it cannot be kept";
}

class statistics : public ::testing::Test {
 protected:
  void SetUp() override {
    domain_set_options options;
    options.run_dir = run_dir_;
    options.domains = {"default"};
    options.version = "1.2.3";
    options.limits.quota_bytes = 64 * mib;
    options.limits.max_connections = 50;
    options.limits.memory_bytes = 32 * mib;
    options.descriptors = 700;
    options.limits.fence_delay_ms = 3'600'000;
    options.timeout = patience_;
    domains_.emplace(options);
    domains_->serve();
    service_.emplace(*domains_, run_dir_);
  }
  [[nodiscard]] client connect() const { return client::connect({.socket_path = socket_}); }
  [[nodiscard]] domain_statistics read() const {
    return agent_.read_statistics("default", patience_);
  }
  /// Waits until that is seen.
  domain_statistics read_when(const std::function<bool(const domain_statistics&)>& is_seen) const {
    domain_statistics last;
    EXPECT_TRUE(eventually(
        [&] {
          last = read();
          return is_seen(last);
        },
        30s));
    return last;
  }
  /// Connects without a fence, reserves a segment, and disconnects without a goodbye.
  void end_without_a_fence() const {
    const auto socket = transport::connect_packet_socket(socket_, patience_);
    wire::reserve wanted;
    wanted.name = "left";
    wanted.size_bytes = wanted.allocated_bytes = mib;
    wanted.device.kind = device_kind::host;
    wanted.chunk_count = 1;
    std::vector<std::byte> buffer(wire::max_packet_bytes);
    std::vector<transport::received> replies;  // a closed event lane ends the session
    for (const wire::message& each :
         {wire::message{1, wire::hello{}}, wire::message{2, std::move(wanted)}}) {
      ASSERT_EQ(transport::send_packet(socket.get(), wire::encode(each), {}),
                transport::send_result::sent);
      ASSERT_TRUE(transport::wait_readable(socket.get(), patience_));
      replies.push_back(transport::receive_packet(socket.get(), buffer));
      ASSERT_EQ(replies.back().status, transport::receive_status::packet);
    }
  }

  const std::chrono::milliseconds patience_ = gpushm_testing::scaled_timeout(30s);
  gpushm_testing::temp_dir folder_;
  const std::string run_dir_ = folder_ / "run";
  const std::string socket_ = run_dir_ + "/d/default/socket";
  const private_socket agent_{run_dir_};
  std::optional<domain_set> domains_;
  std::optional<service> service_;
};

TEST_F(statistics, of_the_broker_have_version_start_and_budgets) {
  const broker_facts got = agent_.read_broker(patience_);
  EXPECT_EQ(got.version, "1.2.3");
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  EXPECT_GT(got.started_ns, 0U);
  EXPECT_LE(got.started_ns, static_cast<std::uint64_t>(now));
  const usage* const memory = budget_of(got.budgets, "memory_bytes");
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(memory->level, "process");
  EXPECT_EQ(memory->limit, 32 * mib);
  ASSERT_NE(budget_of(got.budgets, "descriptors"), nullptr);
  EXPECT_EQ(budget_of(got.budgets, "descriptors")->limit, 700U);
}

TEST_F(statistics, show_who_holds_what_beside_the_limits) {
  client member = connect();
  const segment held =
      member.create("held", {.size_bytes = 2 * mib, .lifetime = lifetime::persistent});
  member.create("left", {.size_bytes = mib, .lifetime = lifetime::persistent}).publish();
  const domain_statistics got =
      read_when([](const domain_statistics& now) { return now.unheld.segments == 1; });
  EXPECT_EQ(got.unheld.bytes, mib);
  ASSERT_EQ(got.principals.size(), 1U);
  EXPECT_EQ(got.principals[0].host_bytes, 3 * mib);
  EXPECT_EQ(got.principals[0].segments, 2U);
  EXPECT_EQ(got.principals[0].connections, 1U);
  EXPECT_EQ(got.others, 0U);
  ASSERT_EQ(got.kinds.size(), 1U);
  EXPECT_EQ(got.kinds[0].name, "host");
  EXPECT_EQ(got.kinds[0].amount.segments, 2U);
  EXPECT_EQ(got.kinds[0].amount.bytes, 3 * mib);
  expect_conserved(got);
  EXPECT_EQ(budget_of(got.budgets, "connections")->limit, 50U);
  EXPECT_EQ(budget_of(got.budgets, "host_bytes")->limit, 64 * mib);
  EXPECT_EQ(budget_of(got.budgets, "waiting_opens")->used, 0U) << "also what is not used";
  EXPECT_GT(budget_of(got.budgets, "descriptors")->limit, 0U);
  EXPECT_EQ(budget_of(got.budgets, "segments")->level, "domain");
}

TEST_F(statistics, show_the_version_of_each_alias) {
  client member = connect();
  const auto publish = [&](const std::string& name) {
    const std::uint64_t number = create_version(member, name);
    member
        .create(name + '@' + std::to_string(number),
                {.size_bytes = 64, .device = "host", .lifetime = lifetime::persistent})
        .publish();
  };
  publish("w/a");
  publish("w/a");
  publish("w/b");
  move_alias(member, "w/a", "prod", 1);
  static_cast<void>(create_version(member, "w/c"));  // its alias refers to nothing
  const domain_statistics got =
      read_when([](const domain_statistics& now) { return now.aliases.size() == 3; });
  const std::vector<alias_statistics> wanted{{"w/a@latest", 2}, {"w/a@prod", 1}, {"w/b@latest", 1}};
  EXPECT_EQ(got.aliases, wanted);
  EXPECT_EQ(got.other_aliases, 1U);
  const std::string long_name = "w/" + std::string(200, 'n');
  for (int i = 0; i != 40; ++i) {
    publish(long_name + std::to_string(i));
  }
  const domain_statistics many =
      read_when([](const domain_statistics& now) { return now.aliases.size() > 10; });
  std::size_t bytes = 0;
  for (const alias_statistics& each : many.aliases) {
    bytes += each.name.size();
  }
  EXPECT_LE(bytes, max_alias_bytes);
  EXPECT_EQ(many.aliases.size() + many.other_aliases, 44U);
}

TEST_F(statistics, count_refusals_and_latencies_by_request) {
  client member = connect();
  const segment one = member.create("one", {.size_bytes = mib});
  EXPECT_EQ(code_of([&] { static_cast<void>(member.create("one", {.size_bytes = mib})); }),
            errc::already_exists);
  EXPECT_EQ(code_of([&] { static_cast<void>(member.create("two", {.size_bytes = 100 * mib})); }),
            errc::quota_exceeded);
  EXPECT_EQ(code_of([&] { static_cast<void>(member.open("three")); }), errc::no_such_segment);
  const domain_statistics got = read();
  EXPECT_EQ(refusals_of(got, "reserve", errc::already_exists), 1U);
  EXPECT_EQ(refusals_of(got, "reserve", errc::quota_exceeded), 1U);
  EXPECT_EQ(refusals_of(got, "open", errc::no_such_segment), 1U);
  EXPECT_EQ(got.refusals.size(), 3U);
  EXPECT_EQ(handled(got, "hello"), 1U);
  EXPECT_EQ(handled(got, "reserve"), 3U);
  EXPECT_EQ(handled(got, "attach"), 1U);
  EXPECT_EQ(handled(got, "open"), 1U);
  EXPECT_EQ(handled(got, "other"), 0U);
}

TEST_F(statistics, show_what_waits_for_a_fence) {
  end_without_a_fence();
  const domain_statistics got = read_when([](const domain_statistics& now) {
    return now.fence_waits.segments == 1 && now.fence_waits.oldest_ms != 0;
  });
  EXPECT_EQ(got.fence_waits.bytes, mib);
  EXPECT_EQ(got.unheld.segments, 0U);
  EXPECT_EQ(agent_.read(patience_).at(0).counted.ending_connections, 1U);
}

/// As their producers report.
TEST_F(statistics, show_channels_and_their_items) {
  client member = connect();
  {
    auto producer = channel_producer::create(
        member, "frames", {.slot_bytes = 8192, .slots = 2, .device = "host"});
    for (int i = 0; i < 2; ++i) {
      auto slot = producer.acquire(patience_);
      ASSERT_TRUE(slot);
      static_cast<void>(slot->publish());
    }
    const domain_statistics got =
        read_when([](const domain_statistics& now) { return now.channel_items == 2; });
    EXPECT_EQ(got.channels, 1U);
    EXPECT_EQ(got.channel_item_bytes, 2U * 8192);
  }
  const domain_statistics got =
      read_when([](const domain_statistics& now) { return now.channels == 0; });
  EXPECT_EQ(got.channel_items, 2U);
}

/// As clients report them: a part of the whole open, which waits for the name.
TEST_F(statistics, show_the_imports_of_clients) {
  client member = connect();
  segment written = member.create("w", {.size_bytes = 4'096, .device = "host"});
  client reader = connect();
  std::jthread publisher([&] {
    std::this_thread::sleep_for(100ms);  // the wait; any length is right
    written.publish();
  });
  const segment opened = reader.open("w", {.timeout = patience_});
  static_cast<void>(reader.open("w"));  // from the cache: no import
  const auto count = [](const domain_statistics& now) {
    return std::accumulate(now.import_latency.begin(), now.import_latency.end(), std::uint64_t{0});
  };
  const domain_statistics got =
      read_when([&](const domain_statistics& now) { return count(now) == 1; });
  EXPECT_GT(got.import_latency_sum_ns, 0U);
  const auto whole = agent_.read(patience_).at(0).counted;
  EXPECT_LT(got.import_latency_sum_ns, whole.open_latency_sum_ns);
  EXPECT_EQ(count(got), 1U);
}

TEST_F(statistics, count_refused_connections) {
  std::vector<base::guarded_fd> idle;
  for (int i = 0; i < 60; ++i) {
    idle.push_back(transport::connect_packet_socket(socket_, patience_));
  }
  const domain_statistics got = read_when([](const domain_statistics& now) {
    return refusals_of(now, "connect", errc::too_many_connections) +
               refusals_of(now, "connect", errc::share_exceeded) !=
           0;
  });
  EXPECT_LE(budget_of(got.budgets, "connections")->used, 50U);
  expect_conserved(got);
}

TEST_F(statistics, are_those_of_a_domain_that_is_served) {
  EXPECT_EQ(code_of([&] { static_cast<void>(agent_.read_statistics("other", patience_)); }),
            errc::invalid_argument);
}

}  // namespace
}  // namespace gpushm::domains
