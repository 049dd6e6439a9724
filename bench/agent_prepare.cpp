// SPDX-License-Identifier: Apache-2.0
// How long a kubelet waits for NodePrepareResources and NodeUnprepareResources: over gRPC, with the
// API server over HTTP, one broker per claim, and a checkpoint that is synced to the disk of
// $TMPDIR. Reports percentiles of sequential claims, while other claims stay prepared.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "base/text/text.hpp"
#include "kubernetes/dra/driver/driver.hpp"
#include "tests/kubelet/dra/world.hpp"
#include "tests/support/fake_kube_api/fake_kube_api.hpp"
#include "tests/support/fake_kubelet/dra_kubelet.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace {

using namespace gpushm_testing;
using std::chrono::steady_clock;

constexpr unsigned prepared_meanwhile = 60;

class durations {
 public:
  template <typename Call>
  void time(const Call& call) {
    const auto began = steady_clock::now();
    call();
    values_.push_back(
        std::chrono::duration<double, std::milli>(steady_clock::now() - began).count());
  }
  void print(const char* name) {
    std::sort(values_.begin(), values_.end());
    const auto at = [this](double part) {
      return values_.at(static_cast<std::size_t>(part * static_cast<double>(values_.size() - 1)));
    };
    std::printf("%-24s p50 %.2f ms  p90 %.2f ms  p99 %.2f ms  max %.2f ms  (%zu)\n",
                name,
                at(0.5),
                at(0.9),
                at(0.99),
                values_.back(),
                values_.size());
  }

 private:
  std::vector<double> values_;
};

dra_claim add(gpushm::testing::fake_kube_api& server, unsigned number) {
  const claim_reference claim = claim_number(number);
  server.put(claim_path(claim), claim_object(claim));
  return {claim.name_space, claim.name, claim.uid};
}

void expect_ok(const dra_responses& answers) {
  for (const auto& [uid, answer] : answers) {
    if (!answer.error.empty()) {
      std::fprintf(stderr, "%s\n", answer.error.c_str());
      std::exit(1);  // NOLINT(concurrency-mt-unsafe): failures must not be measured
    }
  }
}

int measure(unsigned rounds) {
  const temp_dir dir;
  // As on a node: /run is in memory, the kubelet's directory is not.
  ::setenv("TMPDIR", "/dev/shm", 1);  // NOLINT(concurrency-mt-unsafe): no other thread yet
  const temp_dir in_memory;
  gpushm::testing::fake_kube_api server;
  server.put(std::string("/api/v1/nodes/") + test_node);
  const gpushm::api_client::client client(gpushm::api_client::server_access{.url = server.url()});
  broker_domains domains(in_memory / "run");
  dra_kubelet_options found_by;
  found_by.root = dir.path();
  dra_kubelet kubelet(found_by);
  gpushm::dra::driver_options options;
  options.node_name = test_node;
  options.kubelet_root = dir.path();
  options.cdi_directory = in_memory / "cdi";
  gpushm::dra::driver driver(options, client, domains);
  if (!kubelet.wait_registered(test_driver, std::chrono::seconds(20))) {
    std::fprintf(stderr, "the driver was not registered: %s\n", driver.status().problem.c_str());
    return 1;
  }
  for (unsigned number = 0; number < prepared_meanwhile; ++number) {
    expect_ok(kubelet.prepare(test_driver, {add(server, number)}));
  }
  durations preparing;
  durations again;
  durations unpreparing;
  const auto plugin = kubelet.plugin_of(test_driver);
  const std::chrono::seconds limit(45);
  for (unsigned round = 0; round < rounds; ++round) {
    const dra_claim claim = add(server, prepared_meanwhile + round);
    preparing.time([&] { expect_ok(kubelet.prepare(test_driver, {claim})); });
    again.time(
        [&] { expect_ok(call_prepare(plugin->channel(), plugin->service(), {claim}, limit)); });
    unpreparing.time([&] { expect_ok(kubelet.unprepare(test_driver, {claim})); });
  }
  preparing.print("NodePrepareResources");
  again.print("  of a prepared claim");
  unpreparing.print("NodeUnprepareResources");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto rounds = argc > 1 ? gpushm::base::number<unsigned>(argv[1]) : 500U;
    if (!rounds || *rounds == 0) {
      std::fprintf(stderr, "usage: gpushm_bench_agent_prepare [ROUNDS]\n");
      return 2;
    }
    return measure(*rounds);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
