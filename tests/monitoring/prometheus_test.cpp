// SPDX-License-Identifier: Apache-2.0
// A Prometheus of the distribution scrapes an agent and, through it, a broker: real programs with
// fake GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "gpushm/gpushm.hpp"
#include "testing/agent_node/agent_node.hpp"
#include "testing/process/child.hpp"
#include "testing/process/deadline.hpp"
#include "testing/process/programs.hpp"
#include "testing/process/temp_dir.hpp"
#include "tests/docs/docs_text.hpp"
#include "tests/monitoring/monitoring_files.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::eventually;
using gpushm_testing::scaled_timeout;
using nlohmann::json;
using namespace std::chrono_literals;

std::string percent_encoded(const std::string& text) {
  constexpr const char* digits = "0123456789ABCDEF";
  std::string result;
  for (const char each : text) {
    const auto code = static_cast<unsigned char>(each);
    result += {'%', digits[code / 16], digits[code % 16]};
  }
  return result;
}

/// A Prometheus with the rules of this repository. Thread-safety: unsafe.
class prometheus_server {
 public:
  explicit prometheus_server(int port_of_agent)
      : server_(gpushm_testing::child::start(options_for(port_of_agent))) {
    const std::string listens = "msg=\"Listening on\" address=127.0.0.1:";
    const std::string line =
        server_.wait_for_line(listens + "[0-9]+", scaled_timeout(60s), gpushm_testing::stream::err);
    port_ = std::stoi(line.substr(line.find(listens) + listens.size()));
  }

  /// The field "data" of the answer; null if the request fails, for instance because the server is
  /// not ready.
  [[nodiscard]] json get(const std::string& path) {
    last_answer_ = http_get(port_, path);
    const json answer = json::parse(
        last_answer_.substr(std::min<std::size_t>(4, last_answer_.size())), nullptr, false);
    return answer.is_object() && answer.value("status", "") == "success" ? answer.at("data")
                                                                         : json();
  }
  /// The samples that an expression has now; null as above.
  [[nodiscard]] json samples_of(const std::string& expression) {
    const json data = get("/api/v1/query?query=" + percent_encoded(expression));
    return data.is_object() ? data.at("result") : json();
  }
  [[nodiscard]] bool has_samples(const std::string& expression) {
    const json samples = samples_of(expression);
    return samples.is_array() && !samples.empty();
  }
  [[nodiscard]] const std::string& last_answer() const { return last_answer_; }

 private:
  [[nodiscard]] gpushm_testing::spawn_options options_for(int port_of_agent) const {
    const std::string settings = folder_ / "prometheus.yml";
    std::ofstream(settings) << "global: {scrape_interval: 250ms, evaluation_interval: 1s}\n"
                            << "scrape_configs:\n- job_name: gpushmd\n  static_configs:\n"
                            << "  - targets: ['127.0.0.1:" << port_of_agent << "']\n"
                            << "rule_files: ['" GPUSHM_SOURCE_DIR
                               "/deploy/monitoring/rules.yaml']\n";
    gpushm_testing::spawn_options options;
    options.argv = {"prometheus",
                    "--config.file=" + settings,
                    "--storage.tsdb.path=" + (folder_ / "data"),
                    "--web.listen-address=127.0.0.1:0"};
    return options;
  }

  gpushm_testing::temp_dir folder_;
  gpushm_testing::child server_;
  int port_ = 0;
  std::string last_answer_;
};

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
      server_ = std::make_unique<prometheus_server>(node_->port());
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
