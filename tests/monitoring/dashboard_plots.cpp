// SPDX-License-Identifier: Apache-2.0
// Writes docs/dashboard.svg: an agent and a broker with fake GPUs under a small load, a Prometheus
// that scrapes them, and scripts/plot_dashboard.py.
//
//   dashboard_plots SECONDS FILE      needs root, as fake GPUs do
//
// The queries have windows of five minutes: rates are too low until the load has lasted that long.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <deque>
#include <exception>
#include <iostream>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "gpushm/gpushm.hpp"
#include "tests/kubelet/dra/world.hpp"
#include "tests/monitoring/prometheus_server.hpp"
#include "tests/support/agent_node/agent_node.hpp"
#include "tests/support/process/child.hpp"

namespace gpushm_tests {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

constexpr auto period = 50ms;  // of the load
constexpr std::size_t mib = 1U << 20U;
/// What a rate needs until it is right.
constexpr std::chrono::seconds window{300};

/// Segments come and go, clients open them, from the cache too; some requests fail.
class load {
 public:
  explicit load(agent_node& node) : node_(node) {}

  /// `phase`: the time since the start as a part of the whole.
  void step(double phase) {
    try {
      use(phase);
    } catch (const gpushm::error& why) {
      std::cerr << why.what() << '\n';
      if (++failures_ > 20) {
        throw;
      }
      names_.clear();  // which of them exist is not known
    }
  }
  [[nodiscard]] unsigned failures() const { return failures_; }

 private:
  void use(double phase) {
    ++steps_;
    const double wave = 0.5 - 0.5 * std::cos(phase * 6 * 3.14159265);
    keep_segments(4 + static_cast<std::size_t>(wave * 20));
    for (const std::string& name : names_) {
      static_cast<void>(reader_.open(name));
    }
    if (steps_ % 4 == 0) {
      auto visitor = connect();
      for (std::size_t i = 0; i < 1 + static_cast<std::size_t>(wave * 4) && i < names_.size();
           ++i) {
        static_cast<void>(visitor.open(names_[i]));
      }
      if (phase > 0.75 && visitor.try_open("none")) {
        throw std::runtime_error("a segment that nobody creates");
      }
    }
    if (steps_ % 10 == 0 && phase > 0.6 && phase < 0.8) {
      expect_refusal();
    }
    if (steps_ % 100 == 0) {
      use_claim(static_cast<unsigned>(steps_ / 100 % 8));
    }
  }

  [[nodiscard]] gpushm::client connect() const {
    return gpushm::client::connect(
        {.socket_path = node_.domain_directory("default") + "/socket", .timeout = 20s});
  }

  void keep_segments(std::size_t count) {
    if (names_.size() > count) {
      creator_.remove(names_.front());
      names_.pop_front();
    }
    if (names_.size() < count) {
      const std::string name = "w" + std::to_string(++created_);
      gpushm::create_options options;
      options.size_bytes = (1 + created_ % 3) * mib;
      options.device = "host";
      options.lifetime = gpushm::lifetime::persistent;
      creator_.create(name, options).publish();
      names_.push_back(name);
    }
  }

  /// More than the quota.
  void expect_refusal() {
    gpushm::create_options options;
    options.size_bytes = 4'096 * mib;
    options.device = "host";
    try {
      static_cast<void>(creator_.create("large", options));
    } catch (const gpushm::error& why) {
      if (why.code() == gpushm::errc::quota_exceeded ||
          why.code() == gpushm::errc::share_exceeded) {
        return;
      }
      throw;
    }
    throw std::runtime_error("a segment beyond the quota was created");
  }

  /// Prepares the claim, or ends it if it is prepared.
  void use_claim(unsigned number) {
    const auto reference = gpushm_testing::claim_number(number);
    gpushm_testing::test_result result;
    result.pool = node_name;
    result.device = "share-" + std::to_string(number);
    const gpushm_testing::dra_claim claim{reference.name_space, reference.name, reference.uid};
    if (prepared_.insert(number).second) {
      node_.api().put(gpushm_testing::claim_path(reference),
                      gpushm_testing::claim_object(reference, {result}));
      static_cast<void>(node_.claims().prepare("gpushm.dev", {claim}));
    } else {
      static_cast<void>(node_.claims().unprepare("gpushm.dev", {claim}));
      prepared_.erase(number);
    }
  }

  agent_node& node_;
  gpushm::client creator_ = connect();
  gpushm::client reader_ = connect();
  std::deque<std::string> names_;
  std::set<unsigned> prepared_;
  std::size_t created_ = 0;
  std::size_t steps_ = 0;
  unsigned failures_ = 0;
};

int run(std::chrono::seconds time, const std::string& file) {
  if (const std::string reason = why_no_node(); !reason.empty()) {
    throw std::runtime_error(reason);
  }
  const cdi_machine machine(false);
  agent_node node(machine);
  node.start_broker({"--quota-bytes", std::to_string(128 * mib)});
  node.start_kubelet();
  node.start_agent();
  if (!node.wait_ready()) {
    throw std::runtime_error("the agent is not ready");
  }
  prometheus_server server(node.port(), 1s);
  load work(node);
  const auto begin = clock::now();
  const auto end = begin + window + time;
  bool restarted = false;
  for (auto next = begin; next < end; next += period) {
    std::this_thread::sleep_until(next);
    const std::chrono::duration<double> shown = clock::now() - begin - window;
    if (!restarted && shown > time / 2) {
      static_cast<void>(node.broker().kill());
      restarted = true;
    }
    work.step(std::max(0.0, shown / time));
  }
  std::cout << "requests that failed while the broker was away: " << work.failures() << '\n';
  const auto plotted = gpushm_testing::run_program(
      plot_options(
          server,
          time,
          "gpushm-brokerd and gpushmd with fake GPUs under a small load, scraped each second. "
          "The broker was killed once, in the middle.",
          file),
      60s);
  std::cout << plotted.out << plotted.err;
  return plotted.status.success() ? 0 : 1;
}

}  // namespace
}  // namespace gpushm_tests

int main(int argc, char** argv) {
  try {
    if (argc != 3) {
      std::cerr << "usage: dashboard_plots SECONDS FILE\n";
      return 2;
    }
    return gpushm_tests::run(std::chrono::seconds(std::stoi(argv[1])), argv[2]);
  } catch (const std::exception& why) {
    std::cerr << "dashboard_plots: " << why.what() << '\n';
    return 1;
  }
}
