// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/cdi/cdi_machine.hpp"
#include "tests/support/fake_kube_api/fake_kube_api.hpp"
#include "tests/support/fake_kubelet/dra_kubelet.hpp"
#include "tests/support/fake_kubelet/fake_kubelet.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {

inline constexpr const char* node_name = "node-a";

/// A node: both parts of a kubelet, an API server, a machine with GPUs, and broker and agent as
/// separate processes that tests start and kill.
class agent_node {
 public:
  /// Starts only the API server. `machine` must outlive the node.
  explicit agent_node(const cdi_machine& machine);
  agent_node(const agent_node&) = delete;
  agent_node& operator=(const agent_node&) = delete;
  ~agent_node() = default;

  /// `with_dra`: also starts the part for DRA drivers.
  void start_kubelet(bool with_dra = true);
  void stop_kubelet();
  /// Starts gpushm-brokerd under its keeper; `start_agent` does, unless this was called.
  void start_broker(const std::vector<std::string>& flags = {});
  void stop_broker() { broker_.reset(); }
  [[nodiscard]] gpushm_testing::brokerd& broker() { return *broker_; }
  /// Starts gpushmd with the options for this node and `flags`. Returns when it serves HTTP.
  void start_agent(const std::vector<std::string>& flags = {});
  /// Blocks until all parts are registered and published and the kubelet has every resource's list
  /// of devices. On timeout returns false and reports the reason to GoogleTest.
  [[nodiscard]] bool wait_ready();
  [[nodiscard]] gpushm_testing::child& agent() { return *agent_; }

  /// Returns status and body of the response: "200 ok\n".
  [[nodiscard]] std::string http_get(const std::string& path) const;
  /// Of the agent's HTTP server.
  [[nodiscard]] int port() const { return port_; }
  /// The value of the metric "NAME{LABELS}"; -1 when there is none.
  [[nodiscard]] double metric(const std::string& name) const;

  [[nodiscard]] gpushm_testing::fake_kubelet& kubelet() { return *kubelet_; }
  [[nodiscard]] gpushm_testing::dra_kubelet& claims() { return *claims_; }
  [[nodiscard]] gpushm::testing::fake_kube_api& api() { return api_; }
  [[nodiscard]] std::string spec_directory() const { return folder_ / "cdi"; }
  [[nodiscard]] std::string domain_directory(const std::string& domain) const {
    return folder_ / ("run/d/" + domain);
  }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }

 private:
  [[nodiscard]] bool wait_listed();

  const cdi_machine& machine_;
  gpushm_testing::temp_dir folder_{0755};
  gpushm::testing::fake_kube_api api_;
  std::unique_ptr<gpushm_testing::fake_kubelet> kubelet_;
  std::unique_ptr<gpushm_testing::dra_kubelet> claims_;
  std::unique_ptr<gpushm_testing::brokerd> broker_;
  std::unique_ptr<gpushm_testing::child> agent_;
  int port_ = 0;
};

/// Status and body of the response of a server on this machine: "200 ok\n"; or why there is none.
/// Blocks for ten seconds without data at most.
[[nodiscard]] std::string http_get(int port, const std::string& path);

/// The reason why fake GPUs for an agent cannot be created on this machine; empty if they can.
[[nodiscard]] std::string why_no_node();

}  // namespace gpushm_tests
