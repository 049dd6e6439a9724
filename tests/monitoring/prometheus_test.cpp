// SPDX-License-Identifier: Apache-2.0
// A Prometheus of the distribution scrapes an agent and, through it, a broker: real programs with
// fake GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "gpushm/gpushm.hpp"
#include "tests/docs/docs_text.hpp"
#include "tests/monitoring/monitoring_files.hpp"
#include "tests/monitoring/prometheus_server.hpp"
#include "tests/support/agent_node/agent_node.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::eventually;
using gpushm_testing::scaled_timeout;
using nlohmann::json;
using namespace std::chrono_literals;

/// One node for all tests: a Prometheus begins to scrape five seconds after its start.
class prometheus : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_node(); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    if (!gpushm_testing::find_in_path("prometheus")) {
      GTEST_SKIP() << "no prometheus in $PATH (Debian: prometheus)";
    }
    if (!has_source_tree()) {
      GTEST_SKIP() << "the source tree is not on this machine";
    }
    if (server_ == nullptr) {
      machine_ = std::make_unique<cdi_machine>(false);
      node_ = std::make_unique<agent_node>(*machine_);
      node_->start_kubelet();
      node_->start_agent();
      ASSERT_TRUE(node_->wait_ready());
      server_ = std::make_unique<prometheus_server>(node_->port(), 250ms);
    }
  }
  static void TearDownTestSuite() {
    server_.reset();
    node_.reset();
    machine_.reset();
  }

  /// Opens that succeed, from the broker and from the cache, and one that fails.
  static void use_domain() {
    const auto connect = [&] {
      return gpushm::client::connect({.socket_path = node_->domain_directory("default") + "/socket",
                                      .timeout = scaled_timeout(20s)});
    };
    auto creator = connect();
    gpushm::create_options options;
    options.size_bytes = 4'096;
    options.device = "host";
    options.lifetime = gpushm::lifetime::persistent;
    const std::string name = "w" + std::to_string(++segments_);
    creator.create(name, options).publish();
    auto opener = connect();
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(opener.open(name).size_bytes(), 4'096U);
    }
    EXPECT_THROW(static_cast<void>(opener.open("none")), gpushm::error);
  }

  static inline int segments_ = 0;
  static inline std::unique_ptr<cdi_machine> machine_;
  static inline std::unique_ptr<agent_node> node_;
  static inline std::unique_ptr<prometheus_server> server_;
};

TEST_F(prometheus, answers_the_documented_queries) {
  use_domain();
  // Prometheus calculates these, and finds no samples: nothing has failed or waits here.
  const std::set<std::string> without_samples{"Refusals a second"};
  for (const titled_query& each : documented_queries()) {
    SCOPED_TRACE(each.title);
    const bool needs_samples = without_samples.count(each.title) == 0;
    EXPECT_TRUE(eventually(
        [&] {
          return needs_samples ? server_->has_samples(each.expression)
                               : server_->samples_of(each.expression).is_array();
        },
        60s))
        << server_->last_answer();
  }
}

TEST_F(prometheus, numbers_of_principals_add_up_to_those_of_the_domain) {
  use_domain();
  // The creator has closed its persistent segment.
  EXPECT_TRUE(eventually([&] { return server_->has_samples("gpushm_unheld_segments >= 1"); }, 60s))
      << server_->last_answer();
  for (const char* const equal :
       {"sum by (domain) (gpushm_principal_segments) == on (domain) gpushm_segments > 0",
        "sum by (domain) (gpushm_principal_segment_bytes) == on (domain) gpushm_segment_bytes > 0",
        "sum by (domain) (gpushm_backend_segments) == on (domain) gpushm_segments > 0"}) {
    EXPECT_TRUE(eventually([&] { return server_->has_samples(equal); }, 60s)) << equal;
  }
}

TEST_F(prometheus, evaluates_the_alerts) {
  const auto states = [&] {
    std::map<std::string, std::string> result;  // by alert: "ok" if it is evaluated and quiet
    const json data = server_->get("/api/v1/rules?type=alert");
    for (const json& group : data.is_object() ? data.at("groups") : json::array()) {
      for (const json& rule : group.at("rules")) {
        // A call that failed once on a slow machine makes an alert pending.
        result[rule.at("name")] = rule.at("state") == "firing" ? "firing" : rule.at("health");
      }
    }
    return result;
  };
  std::map<std::string, std::string> expected;
  for (const alert_rule& each : alert_rules()) {
    expected[each.name] = "ok";
  }
  std::map<std::string, std::string> seen;
  EXPECT_TRUE(eventually([&] { return (seen = states()) == expected; }, 60s))
      << ::testing::PrintToString(seen) << node_->http_get("/metrics");

  // The metrics exist: an alert about a metric that nothing reports is always inactive.
  std::set<std::string> names;
  for (const alert_rule& each : alert_rules()) {
    names.merge(metrics_in(each.expression));
  }
  std::string missing;
  const auto all_known = [&] {
    const json known = server_->get("/api/v1/metadata");
    missing.clear();
    for (const std::string& name : names) {
      missing += known.is_object() && known.contains(name) ? "" : name + ' ';
    }
    return missing.empty();
  };
  EXPECT_TRUE(eventually(all_known, 60s)) << missing;
}

// docs/dashboard.svg has the same panels: monitoring.committed_plots_are_of_the_dashboard.
TEST_F(prometheus, answers_are_plotted_for_each_panel) {
  if (!gpushm_testing::find_in_path("python3")) {
    GTEST_SKIP() << "no python3 in $PATH";
  }
  use_domain();
  ASSERT_TRUE(eventually([&] { return server_->has_samples("gpushm_segments >= 1"); }, 60s));
  const gpushm_testing::temp_dir folder;
  const std::string file = folder / "plots.svg";
  const auto done = gpushm_testing::run_program(plot_options(*server_, 10s, "of a <test>", file),
                                                scaled_timeout(60s));
  ASSERT_EQ(done.status, gpushm_testing::exited(0)) << done.err;
  std::ifstream stream(file);
  const std::string svg{std::istreambuf_iterator<char>(stream), {}};
  std::vector<std::string> expected;
  for (const titled_query& each : documented_queries()) {
    expected.push_back(each.title);
  }
  EXPECT_EQ(plotted_titles(svg), expected);
  EXPECT_NE(svg.find("no Grafana"), std::string::npos);
  EXPECT_NE(svg.find("of a &lt;test&gt;"), std::string::npos);
  const std::string segments = svg.substr(svg.find(">Segments<"));
  EXPECT_NE(segments.substr(0, segments.find("</g>")).find("<polyline"), std::string::npos);
  EXPECT_NE(segments.find("127.0.0.1:" + std::to_string(node_->port()) + " default: "),
            std::string::npos);
}

TEST_F(prometheus, sees_a_restart_of_the_broker) {
  const auto value_of = [&](const std::string& expression) -> std::string {
    const json samples = server_->samples_of(expression);
    return samples.is_array() && !samples.empty() ? samples.at(0).at("value").at(1) : "";
  };
  const auto becomes = [&](const std::string& expression, const std::string& value) {
    return eventually([&] { return value_of(expression) == value; }, 60s);
  };
  const std::string changes = "changes(gpushm_broker_start_time_seconds[1h])";
  ASSERT_TRUE(becomes(changes, "0")) << server_->last_answer();
  ASSERT_TRUE(becomes("gpushm_broker_starts_total", "1")) << server_->last_answer();
  ASSERT_TRUE(node_->broker().kill());
  EXPECT_TRUE(becomes(changes, "1")) << server_->last_answer();
  EXPECT_TRUE(becomes("gpushm_broker_starts_total", "2")) << server_->last_answer();
}

}  // namespace
}  // namespace gpushm_tests
