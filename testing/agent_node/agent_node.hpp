// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "testing/cdi/cdi_machine.hpp"
#include "testing/fake_kube_api/fake_kube_api.hpp"
#include "testing/fake_kubelet/dra_kubelet.hpp"
#include "testing/fake_kubelet/fake_kubelet.hpp"
#include "testing/process/child.hpp"
#include "testing/process/temp_dir.hpp"

namespace gpushm_tests {

inline constexpr const char* node_name = "node-a";

/// A node: a kubelet in both its halves, an API server, a machine with GPUs, and the agent as a
/// process, which is started and killed as a test likes.
class agent_node {
 public:
  /// Nothing runs yet but the API server. `machine` must outlive the node.
  explicit agent_node(const cdi_machine& machine);
  agent_node(const agent_node&) = delete;
  agent_node& operator=(const agent_node&) = delete;
  ~agent_node() = default;

  /// `with_dra`: also the half that knows DRA drivers.
  void start_kubelet(bool with_dra = true);
  void stop_kubelet();
  /// gpushmd with flags besides those that lead it to this node. Returns when it answers over HTTP.
  void start_agent(std::vector<std::string> flags = {});
  /// All parts are registered and published, and the kubelet has what each resource has to give;
  /// tells GoogleTest what was in the way when not.
  [[nodiscard]] bool wait_ready();
  [[nodiscard]] gpushm_testing::child& agent() { return *agent_; }

  /// The body of the answer, after its status: "200 ok\n".
  [[nodiscard]] std::string ask(const std::string& path) const;
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
  std::unique_ptr<gpushm_testing::child> agent_;
  int port_ = 0;
};

/// What is forbidden on this machine to make fake GPUs for an agent; empty: nothing.
[[nodiscard]] std::string why_no_node();

}  // namespace gpushm_tests
