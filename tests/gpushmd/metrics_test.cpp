// SPDX-License-Identifier: Apache-2.0
// The exposition, line by line.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <string>
#include <thread>

#include "apps/gpushmd/metrics/agent_metrics.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "domains/protocol/process_usage.hpp"
#include "testing/process/child.hpp"
#include "testing/process/deadline.hpp"
#include "testing/process/programs.hpp"

namespace gpushm::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

std::vector<domains::reading> some_domain() {
  domains::reading reading;
  reading.domain = "default";
  reading.counted.segments = 3;
  reading.counted.allocated_bytes = 6'291'456;
  reading.counted.leases = 4;
  reading.counted.connections = 2;
  reading.counted.opens = 10;
  reading.counted.cached_opens = 90;
  reading.counted.open_failures = {{errc::no_such_segment, 5}, {errc::device_not_visible, 1}};
  reading.counted.open_latency[0] = 2;   // to 10 µs
  reading.counted.open_latency[3] = 1;   // to 100 µs
  reading.counted.open_latency[19] = 1;  // beyond 10 s
  reading.counted.open_latency_sum_ns = 12'000'000'000;
  return {reading};
}

TEST(agent_metrics, omits_disabled_parts) {
  const agent_metrics metrics("1.2.3", {});
  const std::string text = metrics.exposition();
  EXPECT_THAT(text, HasSubstr("gpushm_build_info{version=\"1.2.3\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("gpushm_segments")));
  EXPECT_THAT(text, Not(HasSubstr("gpushm_device_plugin")));
  EXPECT_THAT(text, Not(HasSubstr("gpushm_dra")));
}

TEST(agent_metrics, reports_domains) {
  const agent_metrics metrics("1", {some_domain, {}, {}});
  const std::string text = metrics.exposition();
  for (const char* line : {
           "# TYPE gpushm_segments gauge",
           "gpushm_segments{domain=\"default\"} 3",
           "gpushm_segment_bytes{domain=\"default\"} 6291456",
           "gpushm_leases{domain=\"default\"} 4",
           "gpushm_connections{domain=\"default\"} 2",
           "gpushm_waiting_opens{domain=\"default\"} 0",
           "# TYPE gpushm_opens_total counter",
           "gpushm_opens_total{domain=\"default\",by=\"broker\"} 10",
           "gpushm_opens_total{domain=\"default\",by=\"cache\"} 90",
           "gpushm_open_failures_total{domain=\"default\",errc=\"no_such_segment\"} 5",
           "gpushm_open_failures_total{domain=\"default\",errc=\"device_not_visible\"} 1",
           "# TYPE gpushm_open_duration_seconds histogram",
           "gpushm_open_duration_seconds_count{domain=\"default\"} 4",
           "gpushm_open_duration_seconds_sum{domain=\"default\"} 12",
           "gpushm_open_duration_seconds_bucket{domain=\"default\",le=\"1e-05\"} 2",
           "gpushm_open_duration_seconds_bucket{domain=\"default\",le=\"0.0001\"} 3",
           "gpushm_open_duration_seconds_bucket{domain=\"default\",le=\"10\"} 3",
           "gpushm_open_duration_seconds_bucket{domain=\"default\",le=\"+Inf\"} 4",
       }) {
    EXPECT_THAT(text, HasSubstr(std::string(line) + "\n"));
  }
}

TEST(agent_metrics, reports_resources_and_claims) {
  const agent_metrics metrics(
      "1",
      {{},
       [] {
         return std::vector<resource_reading>{{"nvidia.com/gpu", 7, 1, true}};
       },
       [] {
         return std::vector<dra_reading>{{2, 64, false}};
       }});
  const std::string text = metrics.exposition();
  for (const char* line : {
           "gpushm_device_plugin_devices{resource=\"nvidia.com/gpu\",health=\"healthy\"} 7",
           "gpushm_device_plugin_devices{resource=\"nvidia.com/gpu\",health=\"unhealthy\"} 1",
           "gpushm_device_plugin_registered{resource=\"nvidia.com/gpu\"} 1",
           "gpushm_dra_prepared_claims 2",
           "gpushm_dra_published_devices 64",
           "gpushm_dra_registered 0",
       }) {
    EXPECT_THAT(text, HasSubstr(std::string(line) + "\n"));
  }
}

TEST(agent_metrics, counts_operations_of_several_threads) {
  agent_metrics metrics("1", {});
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int n = 0; n < 100; ++n) {
          metrics.finished("device_plugin", "Allocate", "ok", 150us);
        }
      });
    }
  }
  metrics.finished("dra", "NodePrepareResources", "not_found", 3s);
  const std::string text = metrics.exposition();
  for (const char* line : {
           "gpushm_operations_total{operation=\"Allocate\",outcome=\"ok\",service=\"device_"
           "plugin\"} 400",
           "gpushm_operations_total{operation=\"NodePrepareResources\",outcome=\"not_found\","
           "service=\"dra\"} 1",
           "gpushm_operation_duration_seconds_count{operation=\"Allocate\",service=\"device_"
           "plugin\"} 400",
           "gpushm_operation_duration_seconds_bucket{operation=\"Allocate\",service=\"device_"
           "plugin\",le=\"0.0001\"} 0",
           "gpushm_operation_duration_seconds_bucket{operation=\"Allocate\",service=\"device_"
           "plugin\",le=\"0.0002\"} 400",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(agent_metrics, each_family_has_help_and_is_unique) {
  const agent_metrics metrics(
      "1",
      {some_domain,
       [] {
         return std::vector<resource_reading>{{"a", 1, 0, true}, {"b", 1, 0, true}};
       },
       [] { return std::vector<dra_reading>{{}}; }});
  std::set<std::string> families;
  const std::string text = metrics.exposition();
  for (const std::string_view line : base::lines_of(text)) {
    if (line.starts_with("# TYPE ")) {
      const std::string name(base::split(line, " ")[2]);
      EXPECT_TRUE(families.insert(name).second) << name;
      EXPECT_THAT(text, HasSubstr("# HELP " + name + " "));
      EXPECT_TRUE(name.starts_with("gpushm_") || name.starts_with("process_")) << name;
    }
  }
  EXPECT_GE(families.size(), 13U);
}

TEST(agent_metrics, reports_its_process) {
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  const double before = now();
  const agent_metrics metrics("1", {});
  const auto value = [&](const std::string& name) {
    const std::string text = metrics.exposition();
    for (const std::string_view line : base::lines_of(text)) {
      if (line.starts_with(name + " ")) {
        return std::stod(std::string(line.substr(name.size() + 1)));
      }
    }
    return -1.0;
  };
  EXPECT_GT(value("process_resident_memory_bytes"), 1e6);
  EXPECT_GT(value("process_virtual_memory_bytes"), value("process_resident_memory_bytes"));
  EXPECT_GT(value("process_cpu_seconds_total"), 0);
  EXPECT_GT(value("process_max_fds"), 10);
  // A machine that was suspended, or whose clock was set, may differ by some seconds.
  EXPECT_GT(value("process_start_time_seconds"), before - 3'600);
  EXPECT_LT(value("process_start_time_seconds"), now() + 60);
  EXPECT_EQ(value("process_start_time_seconds"), value("process_start_time_seconds"));

  const std::uint64_t descriptors = domains::usage_of_this_process().open_descriptors;
  const base::unique_fd another(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(domains::usage_of_this_process().open_descriptors, descriptors + 1);
}

TEST(agent_metrics, promtool_accepts_the_exposition) {
  if (!gpushm_testing::find_in_path("promtool")) {
    GTEST_SKIP() << "no promtool in $PATH (Debian: prometheus)";
  }
  agent_metrics metrics(
      "1",
      {some_domain,
       [] {
         return std::vector<resource_reading>{{"a", 1, 0, true}, {"b", 1, 0, true}};
       },
       [] { return std::vector<dra_reading>{{}}; }});
  metrics.finished("dra", "NodePrepareResources", "ok", 3s);
  gpushm_testing::spawn_options options;
  options.argv = {"promtool", "check", "metrics"};
  auto promtool = gpushm_testing::child::start(options);
  promtool.write(metrics.exposition());
  promtool.close_stdin();
  EXPECT_EQ(promtool.wait_exit(gpushm_testing::scaled_timeout(60s)), gpushm_testing::exited(0));
  EXPECT_EQ(promtool.text(gpushm_testing::stream::out), "");
  EXPECT_EQ(promtool.text(gpushm_testing::stream::err), "");
}

}  // namespace
}  // namespace gpushm::metrics
