// SPDX-License-Identifier: Apache-2.0
#include "tests/monitoring/prometheus_server.hpp"

#include <algorithm>
#include <fstream>

#include "tests/support/agent_node/agent_node.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm_tests {

namespace {

using nlohmann::json;

std::string percent_encoded(const std::string& text) {
  constexpr const char* digits = "0123456789ABCDEF";
  std::string result;
  for (const char each : text) {
    const auto code = static_cast<unsigned char>(each);
    result += {'%', digits[code / 16], digits[code % 16]};
  }
  return result;
}

}  // namespace

prometheus_server::prometheus_server(int port_of_agent, std::chrono::milliseconds scrape_interval)
    : server_(gpushm_testing::child::start(options_for(port_of_agent, scrape_interval))) {
  const std::string listens = "msg=\"Listening on\" address=127.0.0.1:";
  const std::string line =
      server_.wait_for_line(listens + "[0-9]+",
                            gpushm_testing::scaled_timeout(std::chrono::seconds(60)),
                            gpushm_testing::stream::err);
  port_ = std::stoi(line.substr(line.find(listens) + listens.size()));
}

std::string prometheus_server::url() const {
  return "http://127.0.0.1:" + std::to_string(port_);
}

json prometheus_server::get(const std::string& path) {
  last_answer_ = http_get(port_, path);
  const json answer = json::parse(
      last_answer_.substr(std::min<std::size_t>(4, last_answer_.size())), nullptr, false);
  return answer.is_object() && answer.value("status", "") == "success" ? answer.at("data") : json();
}

json prometheus_server::samples_of(const std::string& expression) {
  const json data = get("/api/v1/query?query=" + percent_encoded(expression));
  return data.is_object() ? data.at("result") : json();
}

bool prometheus_server::has_samples(const std::string& expression) {
  const json samples = samples_of(expression);
  return samples.is_array() && !samples.empty();
}

gpushm_testing::spawn_options prometheus_server::options_for(
    int port_of_agent, std::chrono::milliseconds scrape_interval) const {
  const std::string settings = folder_ / "prometheus.yml";
  std::ofstream(settings) << "global: {scrape_interval: " << scrape_interval.count()
                          << "ms, evaluation_interval: 1s}\n"
                          << "scrape_configs:\n- job_name: gpushmd\n  static_configs:\n"
                          << "  - targets: ['127.0.0.1:" << port_of_agent << "']\n"
                          << "rule_files: ['" GPUSHM_SOURCE_DIR "/deploy/monitoring/rules.yaml']\n";
  gpushm_testing::spawn_options options;
  options.argv = {"prometheus",
                  "--config.file=" + settings,
                  "--storage.tsdb.path=" + (folder_ / "data"),
                  "--web.listen-address=127.0.0.1:0"};
  return options;
}

gpushm_testing::spawn_options plot_options(const prometheus_server& server,
                                           std::chrono::seconds time,
                                           const std::string& note,
                                           const std::string& output) {
  gpushm_testing::spawn_options options;
  options.argv = {"python3",
                  GPUSHM_SOURCE_DIR "/scripts/plot_dashboard.py",
                  "--prometheus",
                  server.url(),
                  "--dashboard",
                  GPUSHM_SOURCE_DIR "/deploy/monitoring/dashboard.json",
                  "--seconds",
                  std::to_string(time.count()),
                  "--note",
                  note,
                  "--output",
                  output};
  return options;
}

}  // namespace gpushm_tests
