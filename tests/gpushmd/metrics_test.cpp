// SPDX-License-Identifier: Apache-2.0
// The exposition, line by line.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "apps/gpushmd/metrics/agent_metrics.hpp"
#include "base/files/unique_fd.hpp"
#include "base/text/text.hpp"
#include "domains/protocol/process_usage.hpp"
#include "tests/docs/docs_text.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"

namespace gpushm::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

domains::domain_statistics some_statistics() {
  domains::domain_statistics result;
  domains::principal_statistics pod;
  pod.name = "pod 3f1c";
  pod.connections = 2;
  pod.segments = 1;
  pod.host_bytes = 4'096;
  pod.gpu_bytes = 2'097'152;
  pod.memory_bytes = 700;
  pod.descriptors = 5;
  domains::principal_statistics rest;
  rest.name = std::string(domains::other_principals);
  rest.segments = 2;
  result.principals = {pod, rest};
  result.others = 3;
  result.budgets = {{"domain", "default", "host_bytes", "", 4'096, 8'192},
                    {"domain", "default", "gpu_bytes", "GPU-1", 2'097'152, 0},
                    {"domain", "default", "gpu_bytes", "GPU-2", 0, 4'194'304}};
  result.aliases = {{"w/llama@latest", 7}};
  result.other_aliases = 2;
  result.unheld = {1, 4'096, 0};
  result.fence_waits = {2, 8'192, 1'500};
  result.kinds = {{"host", {3, 4'096, 0}}};
  result.channels = 1;
  result.channel_items = 6;
  result.channel_item_bytes = 49'152;
  result.import_latency[1] = 2;  // to 20 µs
  result.import_latency_sum_ns = 30'000;
  result.refusals = {{"reserve", errc::quota_exceeded, 7}};
  domains::request_latency open;
  open.request = "open";
  open.counts[1] = 4;      // to 10 µs
  open.counts.back() = 1;  // beyond 10 s
  open.sum_ns = 11'000'000'000;
  result.latencies = {open};
  return result;
}

domains::broker_facts some_broker() {
  domains::broker_facts result;
  result.version = "1.2.2";
  result.starts = 4;
  result.takeovers = 2;
  result.failed_takeovers = 1;
  result.budgets = {{"process", "gpushm-brokerd", "memory_bytes", "", 1'000, 2'000}};
  result.process = {10, 20, 30'000'000'000, 40, 50, 60'000'000'000};
  return result;
}

broker_reading some_domain() {
  domains::reading reading;
  reading.domain = "default";
  reading.serving = true;
  reading.open = true;
  reading.keeper = domains::keeper_state::slow;
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
  broker_reading result;
  result.replied = true;
  result.facts = some_broker();
  result.domains = {reading};
  result.statistics = {{"default", some_statistics()}};
  return result;
}

/// With a sample of each metric.
std::unique_ptr<agent_metrics> with_all_metrics() {
  auto result = std::make_unique<agent_metrics>(
      "1",
      sources{some_domain,
              [] {
                return std::vector<resource_reading>{{"a", 1, 0, true}, {"b", 1, 0, true}};
              },
              [] {
                return std::vector<dra_reading>{{0, 0, false, true, true}};
              }});
  result->finished("dra", "NodePrepareResources", "ok", 3s);
  return result;
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

TEST(agent_metrics, reports_the_broker) {
  const std::string text = with_all_metrics()->exposition();
  for (const char* line : {
           "gpushm_broker_up 1",
           "gpushm_broker_info{version=\"1.2.2\"} 1",
           "gpushm_build_info{version=\"1\"} 1",
           "gpushm_broker_starts_total 4",
           "gpushm_broker_takeovers_total 2",
           "gpushm_broker_failed_takeovers_total 1",
           "gpushm_broker_cpu_seconds_total 30",
           "gpushm_broker_resident_memory_bytes 10",
           "gpushm_broker_open_fds 40",
           "gpushm_broker_max_fds 50",
           "gpushm_broker_start_time_seconds 60",
           "gpushm_budget_used{level=\"process\",budget=\"memory_bytes\"} 1000",
           "gpushm_budget_limit{level=\"process\",budget=\"memory_bytes\"} 2000",
           "gpushm_budget_used{level=\"domain\",domain=\"default\",budget=\"host_bytes\"} 4096",
           "gpushm_budget_limit{level=\"domain\",domain=\"default\",budget=\"host_bytes\"} 8192",
           "gpushm_budget_used{level=\"domain\",domain=\"default\",budget=\"gpu_bytes\",gpu=\"GPU-"
           "1\"} "
           "2097152",
           "gpushm_principal_segment_bytes{domain=\"default\",principal=\"pod "
           "3f1c\",memory=\"host\"} "
           "4096",
           "gpushm_principal_segment_bytes{domain=\"default\",principal=\"pod "
           "3f1c\",memory=\"gpu\"} "
           "2097152",
           "gpushm_principal_segments{domain=\"default\",principal=\"pod 3f1c\"} 1",
           "gpushm_principal_segments{domain=\"default\",principal=\"other\"} 2",
           "gpushm_principal_connections{domain=\"default\",principal=\"pod 3f1c\"} 2",
           "gpushm_principal_broker_memory_bytes{domain=\"default\",principal=\"pod 3f1c\"} 700",
           "gpushm_principal_descriptors{domain=\"default\",principal=\"pod 3f1c\"} 5",
           "gpushm_other_principals{domain=\"default\"} 3",
           "gpushm_alias_version{domain=\"default\",alias=\"w/llama@latest\"} 7",
           "gpushm_other_aliases{domain=\"default\"} 2",
           "gpushm_unheld_segments{domain=\"default\"} 1",
           "gpushm_unheld_bytes{domain=\"default\"} 4096",
           "gpushm_release_pending_segments{domain=\"default\",reason=\"fence\"} 2",
           "gpushm_release_pending_bytes{domain=\"default\",reason=\"fence\"} 8192",
           "gpushm_release_pending_age_seconds{domain=\"default\",reason=\"fence\"} 1.5",
           "gpushm_release_pending_segments{domain=\"default\",reason=\"close\"} 0",
           "gpushm_backend_segments{domain=\"default\",backend=\"host\"} 3",
           "gpushm_channels{domain=\"default\"} 1",
           "gpushm_channel_items_total{domain=\"default\"} 6",
           "gpushm_import_duration_seconds_bucket{domain=\"default\",le=\"1e-05\"} 0",
           "gpushm_import_duration_seconds_bucket{domain=\"default\",le=\"2e-05\"} 2",
           "gpushm_import_duration_seconds_count{domain=\"default\"} 2",
           "gpushm_import_duration_seconds_sum{domain=\"default\"} 3e-05",
           "gpushm_channel_bytes_total{domain=\"default\"} 49152",
           "gpushm_refusals_total{domain=\"default\",operation=\"reserve\",code=\"quota_exceeded\"}"
           " 7",
           "gpushm_request_duration_seconds_count{domain=\"default\",operation=\"open\"} 5",
           "gpushm_request_duration_seconds_sum{domain=\"default\",operation=\"open\"} 11",
           "gpushm_request_duration_seconds_bucket{domain=\"default\",operation=\"open\",le=\"1e-"
           "06\"} "
           "0",
           "gpushm_request_duration_seconds_bucket{domain=\"default\",operation=\"open\",le=\"1e-"
           "05\"} "
           "4",
           "gpushm_request_duration_seconds_bucket{domain=\"default\",operation=\"open\",le=\"10\"}"
           " 4",
           "gpushm_request_duration_seconds_bucket{domain=\"default\",operation=\"open\",le=\"+"
           "Inf\"} "
           "5",
       }) {
    EXPECT_THAT(text, HasSubstr(std::string(line) + "\n"));
  }
  // Without a limit there is no series, so that the share of it has no value.
  EXPECT_THAT(text,
              Not(HasSubstr("gpushm_budget_limit{level=\"domain\",domain=\"default\",budget=\"gpu_"
                            "bytes\",gpu=\"GPU-1\"")));
}

// A counter that reads 0 for one scrape counts twice for Prometheus.
TEST(agent_metrics, reports_no_numbers_of_a_broker_that_does_not_reply) {
  const agent_metrics metrics("1",
                              {[] {
                                 broker_reading reading;
                                 reading.domains.emplace_back().domain = "default";
                                 return reading;
                               },
                               {},
                               {}});
  const std::string text = metrics.exposition();
  EXPECT_THAT(text, HasSubstr("gpushm_broker_up 0\n"));
  EXPECT_THAT(text, HasSubstr("gpushm_domain_serving{domain=\"default\"} 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("gpushm_opens_total{")));
  EXPECT_THAT(text, Not(HasSubstr("gpushm_segments{")));
  EXPECT_THAT(text, Not(HasSubstr("gpushm_open_duration_seconds_count{")));
}

TEST(agent_metrics, reports_resources_and_claims) {
  const agent_metrics metrics(
      "1",
      {{},
       [] {
         return std::vector<resource_reading>{{"nvidia.com/gpu", 7, 1, true}};
       },
       [] {
         return std::vector<dra_reading>{{2, 64, false, true, false}};
       }});
  const std::string text = metrics.exposition();
  for (const char* line : {
           "gpushm_device_plugin_devices{resource=\"nvidia.com/gpu\",health=\"healthy\"} 7",
           "gpushm_device_plugin_devices{resource=\"nvidia.com/gpu\",health=\"unhealthy\"} 1",
           "gpushm_device_plugin_registered{resource=\"nvidia.com/gpu\"} 1",
           "gpushm_dra_prepared_claims 2",
           "gpushm_dra_published_devices 64",
           "gpushm_dra_registered 0",
           "gpushm_dra_expected 1",
           "gpushm_dra_api_served 0",
       }) {
    EXPECT_THAT(text, HasSubstr(std::string(line) + "\n"));
  }
}

TEST(agent_metrics, leaves_out_whether_dra_is_served_until_that_is_known) {
  const agent_metrics metrics(
      "1", {{}, {}, [] {
              return std::vector<dra_reading>{{0, 0, false, false, std::nullopt}};
            }});
  const std::string text = metrics.exposition();
  EXPECT_THAT(text, HasSubstr("gpushm_dra_expected 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("gpushm_dra_api_served")));
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
  std::set<std::string> families;
  const std::string text = with_all_metrics()->exposition();
  for (const std::string_view line : base::lines_of(text)) {
    if (line.starts_with("# TYPE ")) {
      const std::string name(base::split(line, " ")[2]);
      EXPECT_TRUE(families.insert(name).second) << name;
      EXPECT_THAT(text, HasSubstr("# HELP " + name + " "));
      EXPECT_TRUE(name.starts_with("gpushm_") || name.starts_with("process_")) << name;
    }
  }
  EXPECT_GE(families.size(), 50U);
}

/// "NAME TYPE label label" of each family, in order. Precondition: each has a sample.
std::set<std::string> described(const std::string& exposition) {
  std::map<std::string, std::string> types;
  std::map<std::string, std::set<std::string>> names_of_labels;
  for (const std::string_view line : base::lines_of(exposition)) {
    if (line.starts_with("# TYPE ")) {
      const auto words = base::split(line, " ");
      types[std::string(words.at(2))] = words.at(3);
      continue;
    }
    if (line.starts_with('#')) {
      continue;
    }
    std::string name(line.substr(0, line.find_first_of("{ ")));
    if (types.count(name) == 0) {  // of a histogram
      name.resize(name.rfind('_'));
    }
    std::set<std::string>& labels = names_of_labels[name];
    const std::size_t end = line.rfind('}');
    if (end == std::string_view::npos) {
      continue;
    }
    const std::size_t begin = line.find('{') + 1;
    for (const std::string_view label : base::split(line.substr(begin, end - begin), ",")) {
      if (const std::string_view key = label.substr(0, label.find('=')); key != "le") {
        labels.emplace(key);
      }
    }
  }
  std::set<std::string> result;
  for (const auto& [name, type] : types) {
    EXPECT_TRUE(names_of_labels.count(name)) << "no sample of " << name;
    std::string one = name + ' ' + type;
    for (const std::string& label : names_of_labels[name]) {
      one += ' ' + label;
    }
    result.insert(one);
  }
  return result;
}

TEST(agent_metrics, documentation_lists_exactly_the_metrics) {
  if (!gpushm_tests::has_source_tree()) {
    GTEST_SKIP() << "the source tree is not on this machine";
  }
  std::set<std::string> documented;
  for (const auto& row : gpushm_tests::table_rows(
           gpushm_tests::section(gpushm_tests::source_file("docs/monitoring.md"), "## Metrics"))) {
    std::string one = row.at(0) + ' ' + row.at(1);
    std::set<std::string_view> labels;
    for (const std::string_view label : base::split(row.at(2), ", ")) {
      labels.insert(label);
    }
    for (const std::string_view label : labels) {
      one.append(" ").append(label);
    }
    EXPECT_TRUE(documented.insert(one).second) << one << " twice";
  }
  EXPECT_EQ(described(with_all_metrics()->exposition()), documented);
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
  gpushm_testing::spawn_options options;
  options.argv = {"promtool", "check", "metrics"};
  auto promtool = gpushm_testing::child::start(options);
  promtool.write(with_all_metrics()->exposition());
  promtool.close_stdin();
  EXPECT_EQ(promtool.wait_exit(gpushm_testing::scaled_timeout(60s)), gpushm_testing::exited(0));
  EXPECT_EQ(promtool.text(gpushm_testing::stream::out), "");
  EXPECT_EQ(promtool.text(gpushm_testing::stream::err), "");
}

}  // namespace
}  // namespace gpushm::metrics
