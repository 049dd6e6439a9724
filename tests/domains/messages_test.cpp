// SPDX-License-Identifier: Apache-2.0
// Packets of the private socket.
#include "domains/protocol/messages.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace gpushm::domains {
namespace {

reading sample(const std::string& domain) {
  reading result;
  result.handed_back = 3;
  result.lost = 5;
  result.freeing_bytes = 7;
  result.keeper = keeper_state::full;
  result.domain = domain;
  result.serving = true;
  result.open = true;
  result.problem = "why";
  broker_statistics& c = result.counted;
  std::uint64_t next = 1;
  for (std::uint64_t* const each : {&c.segments,
                                    &c.allocated_bytes,
                                    &c.leases,
                                    &c.connections,
                                    &c.ending_connections,
                                    &c.unfenced,
                                    &c.waiting_opens,
                                    &c.opens,
                                    &c.cached_opens,
                                    &c.open_latency_sum_ns}) {
    *each = next++;
  }
  c.open_failures = {{errc::no_such_segment, 20}, {errc::timed_out, 21}};
  for (std::uint64_t& each : c.open_latency) {
    each = next++;
  }
  return result;
}

void expect_equal(const reading& left, const reading& right) {
  EXPECT_EQ(left.domain, right.domain);
  EXPECT_EQ(left.serving, right.serving);
  EXPECT_EQ(left.open, right.open);
  EXPECT_EQ(left.problem, right.problem);
  EXPECT_EQ(left.handed_back, right.handed_back);
  EXPECT_EQ(left.lost, right.lost);
  EXPECT_EQ(left.freeing_bytes, right.freeing_bytes);
  EXPECT_EQ(left.keeper, right.keeper);
  const broker_statistics& a = left.counted;
  const broker_statistics& b = right.counted;
  EXPECT_EQ(a.segments, b.segments);
  EXPECT_EQ(a.allocated_bytes, b.allocated_bytes);
  EXPECT_EQ(a.leases, b.leases);
  EXPECT_EQ(a.connections, b.connections);
  EXPECT_EQ(a.ending_connections, b.ending_connections);
  EXPECT_EQ(a.unfenced, b.unfenced);
  EXPECT_EQ(a.waiting_opens, b.waiting_opens);
  EXPECT_EQ(a.opens, b.opens);
  EXPECT_EQ(a.cached_opens, b.cached_opens);
  EXPECT_EQ(a.open_failures, b.open_failures);
  EXPECT_EQ(a.open_latency, b.open_latency);
  EXPECT_EQ(a.open_latency_sum_ns, b.open_latency_sum_ns);
}

TEST(private_messages, requests_survive) {
  EXPECT_EQ(std::get<open_request>(decode_request(encode(request(open_request{"a"})))).domain, "a");
  EXPECT_EQ(std::get<close_request>(decode_request(encode(request(close_request{"b"})))).domain,
            "b");
  EXPECT_EQ(std::get<read_request>(decode_request(encode(request(read_request{"c"})))).after, "c");
  EXPECT_TRUE(
      std::holds_alternative<yield_request>(decode_request(encode(request(yield_request{})))));
  EXPECT_EQ(
      std::get<set_quotas_request>(decode_request(encode(request(set_quotas_request{"d"})))).text,
      "d");
  EXPECT_EQ(std::get<usage_request>(decode_request(encode(request(usage_request{"e"})))).domain,
            "e");
  const auto lost = std::get<lose_device_request>(decode_request(encode(
      request(lose_device_request{{"GPU-0", "0000:18:00.0", {base::loss_cause::xid, 79}}}))));
  EXPECT_EQ(lost.device.uuid, "GPU-0");
  EXPECT_EQ(lost.device.pci_address, "0000:18:00.0");
  EXPECT_EQ(lost.device.loss, (base::device_loss{base::loss_cause::xid, 79}));
}

TEST(private_messages, replies_survive) {
  EXPECT_EQ(std::get<opened>(decode_reply(encode(reply(opened{"/run/d"})))).directory, "/run/d");
  EXPECT_TRUE(std::holds_alternative<closed>(decode_reply(encode(reply(closed{})))));
  EXPECT_TRUE(std::holds_alternative<yielded>(decode_reply(encode(reply(yielded{})))));
  const auto page =
      std::get<readings>(decode_reply(encode(reply(readings{{sample("a"), {}}, true}))));
  EXPECT_TRUE(page.more);
  ASSERT_EQ(page.all.size(), 2U);
  expect_equal(page.all[0], sample("a"));
  expect_equal(page.all[1], {});
  EXPECT_TRUE(std::holds_alternative<quotas_set>(decode_reply(encode(reply(quotas_set{})))));
  EXPECT_TRUE(std::holds_alternative<device_lost>(decode_reply(encode(reply(device_lost{})))));
  const auto used = std::get<usages>(
      decode_reply(encode(reply(usages{{{"uid", "uid 1", "gpu_bytes", "GPU-0", 5, 6}}, "text"}))));
  ASSERT_EQ(used.all.size(), 1U);
  EXPECT_EQ(used.all[0].level, "uid");
  EXPECT_EQ(used.all[0].name, "uid 1");
  EXPECT_EQ(used.all[0].resource, "gpu_bytes");
  EXPECT_EQ(used.all[0].gpu, "GPU-0");
  EXPECT_EQ(used.all[0].used, 5U);
  EXPECT_EQ(used.all[0].limit, 6U);
  EXPECT_EQ(used.quotas, "text");
  const auto failure = std::get<error>(
      decode_reply(encode(reply(error(errc::address_in_use, "serve", "it", "why", "do")))));
  EXPECT_EQ(failure.code(), errc::address_in_use);
  EXPECT_STREQ(failure.what(), "serve \"it\": why (do)");
}

domain_statistics largest_statistics() {
  constexpr std::uint64_t many = ~std::uint64_t{0};
  domain_statistics result;
  for (std::size_t i = 0; i <= max_principals; ++i) {
    result.principals.push_back({"pod " + std::string(36, static_cast<char>('a' + i % 26)),
                                 i,
                                 many,
                                 many,
                                 many,
                                 many,
                                 many,
                                 many,
                                 many - i});
  }
  result.others = 7;
  result.budgets.assign(max_usages,
                        {"domain", std::string(96, 'n'), "gpu_bytes", std::string(96, 'g'), 1, 2});
  result.unheld = {1, 2, 3};
  result.fence_waits = {4, 5, 6};
  result.close_waits = {7, 8, 9};
  result.channels = 10;
  result.channel_items = 11;
  result.channel_item_bytes = 12;
  result.import_latency.fill(many);
  result.import_latency.back() = 13;
  result.import_latency_sum_ns = 14;
  for (std::size_t i = 0; i < max_aliases; ++i) {
    result.aliases.push_back({std::string(max_alias_bytes / max_aliases, 'n'), many - i});
  }
  result.other_aliases = 15;
  result.kinds.assign(8, {"exporter_bound", {many, many, many}});
  for (std::size_t i = 0; i < max_refusals; ++i) {
    result.refusals.push_back(
        {"request " + std::to_string(i % 24), static_cast<errc>(1 + i % 40), many});
  }
  for (int i = 0; i < 24; ++i) {
    request_latency one{"request " + std::to_string(i), {}, many};
    one.counts.fill(many);
    one.counts.back() = static_cast<std::uint64_t>(i);
    result.latencies.push_back(one);
  }
  return result;
}

TEST(private_messages, statistics_survive) {
  EXPECT_EQ(
      std::get<statistics_request>(decode_request(encode(request(statistics_request{"d"})))).domain,
      "d");
  EXPECT_TRUE(
      std::holds_alternative<broker_request>(decode_request(encode(request(broker_request{})))));

  const broker_facts facts{
      "1.2.3", 4, 5, 6, 7, {{"process", "it", "descriptors", {}, 8, 9}}, {1, 2, 3, 4, 5, 6}};
  const auto about = std::get<broker_facts>(decode_reply(encode(reply(facts))));
  EXPECT_EQ(about.version, "1.2.3");
  EXPECT_EQ(about.started_ns, 4U);
  EXPECT_EQ(about.starts, 5U);
  EXPECT_EQ(about.takeovers, 6U);
  EXPECT_EQ(about.failed_takeovers, 7U);
  ASSERT_EQ(about.budgets.size(), 1U);
  EXPECT_EQ(about.budgets[0].used, 8U);
  EXPECT_EQ(about.budgets[0].limit, 9U);
  EXPECT_EQ(about.process, facts.process);

  // Also the largest one fits.
  const domain_statistics statistics = largest_statistics();
  const auto got = std::get<domain_statistics>(decode_reply(encode(reply(statistics))));
  EXPECT_EQ(got.principals, statistics.principals);
  EXPECT_EQ(got.others, 7U);
  ASSERT_EQ(got.budgets.size(), max_usages);
  EXPECT_EQ(got.budgets.back().resource, "gpu_bytes");
  EXPECT_EQ(got.unheld, statistics.unheld);
  EXPECT_EQ(got.fence_waits, statistics.fence_waits);
  EXPECT_EQ(got.close_waits, statistics.close_waits);
  EXPECT_EQ(got.channels, 10U);
  EXPECT_EQ(got.channel_items, 11U);
  EXPECT_EQ(got.channel_item_bytes, 12U);
  EXPECT_EQ(got.import_latency, statistics.import_latency);
  EXPECT_EQ(got.import_latency_sum_ns, 14U);
  EXPECT_EQ(got.kinds, statistics.kinds);
  EXPECT_EQ(got.refusals, statistics.refusals);
  EXPECT_EQ(got.latencies, statistics.latencies);
  EXPECT_EQ(got.aliases, statistics.aliases);
  EXPECT_EQ(got.other_aliases, 15U);
}

segment_page longest_page() {
  segment_row row;
  row.name.assign(255, 'n');
  row.generation = 1;
  row.principal = "pod 00000000-0000-0000-0000-000000000000";
  row.creator_uid = 2;
  row.creator_alive = true;
  row.size_bytes = 3;
  row.allocated_bytes = 4;
  row.device.assign(96, 'g');
  row.lifetime = lifetime::persistent;
  row.state = segment_state::device_lost;
  row.published = true;
  row.leases = 5;
  row.holders.assign(max_holders, row.principal);
  row.age_ms = 6;
  row.is_age_known = true;
  segment_page page{{}, 7, true};
  page.all.assign(max_segment_rows, row);
  return page;
}

TEST(private_messages, carry_segments) {
  const segment_page page = longest_page();
  const auto got = std::get<segment_page>(decode_reply(encode(reply(page))));
  EXPECT_EQ(got.all, page.all);
  EXPECT_EQ(got.next_slot, 7U);
  EXPECT_TRUE(got.more);
  const auto wanted =
      std::get<segments_request>(decode_request(encode(request(segments_request{"d", 8}))));
  EXPECT_EQ(wanted.domain, "d");
  EXPECT_EQ(wanted.slot, 8U);
  const auto removal = std::get<remove_unheld_request>(
      decode_request(encode(request(remove_unheld_request{"d", 9}))));
  EXPECT_EQ(removal.domain, "d");
  EXPECT_EQ(removal.generation, 9U);
  for (const bool is_removed : {true, false}) {
    EXPECT_EQ(std::get<unheld_removed>(decode_reply(encode(reply(unheld_removed{is_removed}))))
                  .is_removed,
              is_removed);
  }
}

TEST(private_messages, a_full_page_of_the_longest_fits) {
  reading longest = sample(std::string(255, 'n'));
  longest.problem.assign(10'000, 'p');
  for (int code = 1; code < 40; ++code) {
    longest.counted.open_failures[static_cast<errc>(code)] = 1;
  }
  readings page;
  page.all.assign(max_readings, longest);
  EXPECT_EQ(std::get<readings>(decode_reply(encode(reply(page)))).all.size(), max_readings);
  usages most;
  most.quotas.assign(32'768, 'q');
  most.all.assign(max_usages,
                  {"principal", std::string(300, 'n'), "waiting_opens", std::string(128, 'g')});
  EXPECT_EQ(std::get<usages>(decode_reply(encode(reply(most)))).all.size(), max_usages);
}

TEST(private_messages, too_long_ones_are_refused) {
  EXPECT_THROW(static_cast<void>(encode(request(open_request{std::string(70'000, 'x')}))), error);
}

/// Whatever the bytes are, decoding ends with a message or an error.
TEST(private_messages, damaged_ones_are_refused) {
  std::minstd_rand random(1);
  const auto packets = {encode(request(open_request{"domain"})),
                        encode(reply(readings{{sample("a"), sample("b")}, true})),
                        encode(reply(largest_statistics())),
                        encode(reply(longest_page())),
                        encode(reply(error(errc::timed_out, "a", "b", "c", "d")))};
  int refused = 0;
  for (const auto& packet : packets) {
    for (int round = 0; round < 3'000; ++round) {
      auto damaged = packet;
      damaged.resize(random() % (packet.size() + 1));
      for (unsigned changes = random() % 4; changes > 0 && !damaged.empty(); --changes) {
        damaged[random() % damaged.size()] = static_cast<std::byte>(random());
      }
      // In a block of the exact size, so that sanitizers see reads past its end.
      const std::vector<std::byte> exact(damaged.begin(), damaged.end());
      for (const bool as_request : {true, false}) {
        try {
          if (as_request) {
            static_cast<void>(decode_request(exact));
          } else {
            static_cast<void>(decode_reply(exact));
          }
        } catch (const error& why) {
          EXPECT_TRUE(why.code() == errc::protocol_error ||
                      why.code() == errc::unsupported_version);
          ++refused;
        }
      }
    }
  }
  EXPECT_GT(refused, 1'000);
}

}  // namespace
}  // namespace gpushm::domains
