// SPDX-License-Identifier: Apache-2.0
// The broker's statistics, and clients' reports about their opens.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <numeric>
#include <thread>

#include "base/files/page_size.hpp"
#include "broker/hub/counters.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm {
namespace {

using namespace std::chrono_literals;

class broker_statistics_test : public testing::Test {
 protected:
  broker_statistics_test() {
    std::string pattern = (std::filesystem::temp_directory_path() / "gpushm-test-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    options_.socket_path = folder_ + "/socket";
    broker_.emplace(broker::start(options_));
  }
  ~broker_statistics_test() override {
    broker_.reset();
    std::filesystem::remove_all(folder_);
  }

  client connect() { return client::connect({.socket_path = options_.socket_path}); }
  // Returns the statistics once `reached` holds for them, or after ten seconds.
  broker_statistics wait_for(const std::function<bool(const broker_statistics&)>& reached) {
    const auto give_up = std::chrono::steady_clock::now() + 10s;
    for (;;) {
      const broker_statistics now = broker_->statistics();
      if (reached(now) || std::chrono::steady_clock::now() > give_up) {
        return now;
      }
      std::this_thread::sleep_for(5ms);
    }
  }
  static std::uint64_t measured(const broker_statistics& statistics) {
    return std::accumulate(
        statistics.open_latency.begin(), statistics.open_latency.end(), std::uint64_t{0});
  }

  std::string folder_;
  broker_options options_;
  std::optional<broker> broker_;
};

TEST_F(broker_statistics_test, gauges_match_the_domain) {
  const std::uint64_t page = base::host_page_bytes();
  client producer = connect();
  segment written = producer.create(
      "w", {.size_bytes = 5'000, .device = "host", .lifetime = lifetime::persistent});
  written.publish();
  client consumer = connect();
  {
    const segment read = consumer.open("w");
    const broker_statistics now = broker_->statistics();
    EXPECT_EQ(now.segments, 1U);
    EXPECT_EQ(now.allocated_bytes, (5'000 + page - 1) / page * page);
    EXPECT_EQ(now.leases, 2U);
    EXPECT_EQ(now.connections, 2U);
    EXPECT_EQ(now.opens, 1U);
    EXPECT_EQ(now.waiting_opens, 0U);
  }
  producer.remove("w");
  consumer.trim();
  written = segment();
  const broker_statistics then = wait_for([](const broker_statistics& now) {
    return now.segments == 0 && now.leases == 0 && now.allocated_bytes == 0;
  });
  EXPECT_EQ(then.segments, 0U);
  EXPECT_EQ(then.leases, 0U);
  EXPECT_EQ(then.allocated_bytes, 0U);
}

TEST_F(broker_statistics_test, clients_report_latencies_within_two_seconds) {
  client producer = connect();
  segment written = producer.create("w", {.size_bytes = 5'000, .device = "host"});
  written.publish();
  client consumer = connect();
  const auto begin = std::chrono::steady_clock::now();
  const segment read = consumer.open("w");
  const auto took = std::chrono::steady_clock::now() - begin;
  const broker_statistics now =
      wait_for([](const broker_statistics& statistics) { return measured(statistics) == 1; });
  EXPECT_EQ(measured(now), 1U);
  EXPECT_GT(now.open_latency_sum_ns, 0U);
  EXPECT_LE(now.open_latency_sum_ns, static_cast<std::uint64_t>(took.count()));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, gpushm_testing::wait_limit(5s));
  EXPECT_EQ(now.cached_opens, 0U);
}

TEST_F(broker_statistics_test, goodbye_reports_the_rest) {
  client producer = connect();
  segment written = producer.create(
      "w", {.size_bytes = 5'000, .device = "host", .lifetime = lifetime::persistent});
  written.publish();
  {
    client consumer = connect();
    for (int i = 0; i < 10; ++i) {
      static_cast<void>(consumer.open("w"));
    }
  }
  const broker_statistics now =
      wait_for([](const broker_statistics& statistics) { return statistics.cached_opens == 9; });
  EXPECT_EQ(now.opens, 1U);
  EXPECT_EQ(measured(now), 1U);
  EXPECT_EQ(now.cached_opens, 9U);
}

TEST_F(broker_statistics_test, failures_are_counted_by_code) {
  client consumer = connect();
  EXPECT_FALSE(consumer.try_open("absent"));
  EXPECT_FALSE(consumer.try_open("absent"));
  const broker_statistics now = broker_->statistics();
  EXPECT_EQ(now.open_failures, (std::map<errc, std::uint64_t>{{errc::no_such_segment, 2}}));
}

TEST(broker_counters, latency_is_counted_in_its_bucket) {
  broker_detail::counters counted;
  wire::report report;
  report.open_ns = {0, 10'000, 10'001, 10'000'000'000, 10'000'000'001, UINT64_MAX};
  report.import_ns = {10'000, 20'001, UINT64_MAX};
  report.failures = {static_cast<std::uint64_t>(errc::device_not_visible), 64, UINT64_MAX};
  report.cached = 7;
  report.items = 3;
  report.item_bytes = 4096;
  counted.reported(report);
  const broker_statistics now = counted.read();
  EXPECT_EQ(now.open_latency[0], 2U);
  EXPECT_EQ(now.open_latency[1], 1U);
  EXPECT_EQ(now.open_latency[18], 1U);
  EXPECT_EQ(now.open_latency[19], 2U);
  // Times above one hour are clamped to one hour.
  EXPECT_EQ(now.open_latency_sum_ns, 20'001U + 20'000'000'001U + 3'600'000'000'000U);
  EXPECT_EQ(now.open_failures, (std::map<errc, std::uint64_t>{{errc::device_not_visible, 1}}));
  EXPECT_EQ(now.cached_opens, 7U);
  EXPECT_EQ(counted.reports().items, 3U);
  EXPECT_EQ(counted.reports().item_bytes, 4096U);
  const broker_detail::report_counts reported = counted.reports();
  EXPECT_EQ(reported.import_latency[0], 1U);
  EXPECT_EQ(reported.import_latency[2], 1U);
  EXPECT_EQ(reported.import_latency[19], 1U);
  EXPECT_EQ(reported.import_latency_sum_ns, 30'001U + 3'600'000'000'000U);
  report = {};
  report.items = report.item_bytes = UINT64_MAX;
  counted.reported(report);
  EXPECT_EQ(counted.reports().items, 3U + (std::uint64_t{1} << 32U)) << "no overflow";
  EXPECT_EQ(counted.reports().item_bytes, 4096U + (std::uint64_t{1} << 44U));
}

}  // namespace
}  // namespace gpushm
