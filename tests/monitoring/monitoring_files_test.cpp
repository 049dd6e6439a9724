// SPDX-License-Identifier: Apache-2.0
// The alert rules, their runbook, the documented queries and the dashboard agree.
#include "tests/monitoring/monitoring_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "tests/docs/docs_text.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"

namespace gpushm_tests {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;
using namespace std::chrono_literals;

class monitoring : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_source_tree()) {
      GTEST_SKIP() << "the source tree is not on this machine";
    }
  }
};

std::set<std::string> documented_metrics() {
  std::set<std::string> result;
  for (const auto& row : table_rows(section(source_file("docs/monitoring.md"), "## Metrics"))) {
    result.insert(row.at(0));
  }
  return result;
}

TEST_F(monitoring, queries_and_alerts_use_documented_metrics) {
  const std::set<std::string> known = documented_metrics();
  ASSERT_GT(known.size(), 50U);
  const auto expect_known = [&](const std::string& expression, bool some) {
    const std::set<std::string> used = metrics_in(expression);
    EXPECT_EQ(used.empty(), !some) << expression;
    for (const std::string& name : used) {
      EXPECT_TRUE(known.count(name)) << name << " in " << expression;
    }
  };
  for (const titled_query& each : documented_queries()) {
    expect_known(each.expression, true);
  }
  for (const alert_rule& each : alert_rules()) {
    expect_known(each.expression, each.name != "GpushmAgentDown");  // which uses `up`
  }
}

TEST_F(monitoring, dashboard_has_exactly_the_documented_queries) {
  std::vector<titled_query> panels;
  const auto file = dashboard();
  for (const auto& panel : file.at("panels")) {
    ASSERT_THAT(panel.at("targets"), SizeIs(1));
    panels.push_back({panel.at("title"), panel.at("targets").at(0).at("expr")});
  }
  const auto documented = documented_queries();
  ASSERT_GT(documented.size(), 20U);
  ASSERT_EQ(panels.size(), documented.size());
  for (std::size_t i = 0; i < panels.size(); ++i) {
    EXPECT_EQ(panels[i].title, documented[i].title);
    EXPECT_EQ(panels[i].expression, documented[i].expression);
  }
}

// There is no Grafana here: what it needs of a dashboard of schema version 37.
TEST_F(monitoring, dashboard_is_complete) {
  const auto file = dashboard();
  EXPECT_EQ(file.at("schemaVersion"), 37);
  EXPECT_EQ(file.at("title"), "gpushm");
  const auto& variable = file.at("templating").at("list").at(0);
  EXPECT_EQ(variable.at("type"), "datasource");
  EXPECT_EQ(variable.at("query"), "prometheus");
  const std::string source = "${" + variable.at("name").get<std::string>() + "}";
  std::set<int> ids;
  std::set<std::pair<int, int>> cells;
  constexpr int columns = 24;
  for (const auto& panel : file.at("panels")) {
    SCOPED_TRACE(panel.at("title").get<std::string>());
    EXPECT_TRUE(ids.insert(panel.at("id").get<int>()).second);
    const std::set<std::string> types{"timeseries", "stat"};
    EXPECT_TRUE(types.count(panel.at("type").get<std::string>()));
    EXPECT_EQ(panel.at("datasource").at("uid"), source);
    EXPECT_TRUE(panel.at("fieldConfig").at("defaults").at("unit").is_string());
    const auto& target = panel.at("targets").at(0);
    EXPECT_EQ(target.at("refId"), "A");
    EXPECT_EQ(target.at("datasource").at("uid"), source);
    const auto& at = panel.at("gridPos");
    const int left = at.at("x");
    const int top = at.at("y");
    EXPECT_LE(left + at.at("w").get<int>(), columns);
    for (int x = left; x < left + at.at("w").get<int>(); ++x) {
      for (int y = top; y < top + at.at("h").get<int>(); ++y) {
        EXPECT_TRUE(cells.emplace(x, y).second) << "overlaps another panel";
      }
    }
  }
}

// Pictures of Grafana they are not; each says so.
TEST_F(monitoring, committed_plots_are_of_the_dashboard) {
  std::vector<std::string> titles;
  const auto file = dashboard();
  for (const auto& panel : file.at("panels")) {
    titles.push_back(panel.at("title"));
  }
  const std::string svg = source_file("docs/dashboard.svg");
  EXPECT_EQ(plotted_titles(svg), titles)
      << "write it again: dashboard_plots 360 docs/dashboard.svg";
  EXPECT_NE(svg.find("Plots of scraped answers, no Grafana"), std::string::npos);
  EXPECT_NE(source_file("docs/monitoring.md").find("](dashboard.svg)"), std::string::npos);
}

TEST_F(monitoring, each_alert_has_a_runbook) {
  const std::string text = source_file("docs/monitoring.md");
  const std::string alerts = section(text, "## Alerts");
  std::string expected;
  for (const alert_rule& each : alert_rules()) {
    SCOPED_TRACE(each.name);
    expected += "### " + each.name + '\n';
    std::string anchor = each.name;
    std::transform(anchor.begin(), anchor.end(), anchor.begin(), [](unsigned char c) {
      return static_cast<char>(std::tolower(c));
    });
    EXPECT_EQ(each.runbook, "docs/monitoring.md#" + anchor);
    EXPECT_FALSE(each.summary.empty());
    const std::set<std::string> severities{"critical", "warning", "info"};
    EXPECT_TRUE(severities.count(each.severity)) << each.severity;
    const std::string body = section(text, "### " + each.name);
    for (const char* part : {"\n- Meaning: ", "\n- Check: ", "\n- Remedy: "}) {
      EXPECT_NE(body.find(part), std::string::npos) << "no" << part;
    }
  }
  std::string documented;
  std::istringstream lines(alerts);
  for (std::string line; std::getline(lines, line);) {
    documented += line.starts_with("### ") ? line + '\n' : "";
  }
  EXPECT_EQ(documented, expected);
}

TEST_F(monitoring, each_alert_is_tested_both_ways) {
  std::map<std::string, std::set<bool>> tested;
  for (const alert_expectation& each : alert_expectations()) {
    tested[each.name].insert(each.fires);
  }
  for (const alert_rule& each : alert_rules()) {
    EXPECT_THAT(tested[each.name], SizeIs(2)) << each.name;
  }
}

class promtool : public monitoring {
 protected:
  void SetUp() override {
    monitoring::SetUp();
    if (!IsSkipped() && !gpushm_testing::find_in_path("promtool")) {
      GTEST_SKIP() << "no promtool in $PATH (Debian: prometheus)";
    }
  }
  static void accepts(const std::string& kind, const std::string& file) {
    gpushm_testing::spawn_options options;
    options.argv = {
        "promtool", kind, "rules", std::string(GPUSHM_SOURCE_DIR "/deploy/monitoring/") + file};
    const auto done = gpushm_testing::run_program(options, gpushm_testing::scaled_timeout(60s));
    EXPECT_EQ(done.status, gpushm_testing::exited(0)) << done.out << done.err;
  }
};

TEST_F(promtool, accepts_the_rules) {
  accepts("check", "rules.yaml");
}

TEST_F(promtool, finds_that_each_alert_fires_when_it_must) {
  accepts("test", "rules_test.yaml");
}

}  // namespace
}  // namespace gpushm_tests
