// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/gpushm/k8s/finding.hpp"
#include "apps/gpushm/k8s/lint.hpp"

namespace gpushm::k8s {

/// The lines of a pod that requests its GPU by a claim, and of that claim: they fit every cluster
/// with a DRA driver of GPUs, whichever device plugin it has.
[[nodiscard]] std::vector<std::string> claim_lines();

/// A rule that checks each pod separately.
struct pod_rule {
  std::string_view name;
  void (*check)(const workload& pod, report& out);
};
[[nodiscard]] std::span<const pod_rule> pod_rules();

/// A rule that checks each container separately.
struct container_rule {
  std::string_view name;
  void (*check)(const workload& pod, const manifest_node& container, report& out);
};
[[nodiscard]] std::span<const container_rule> container_rules();

/// Checks whether pods that can share are guaranteed the same node, GPU and claim:
/// gpu-not-promised, node-not-promised, claim-not-shared. `one_gpu_nodes`: the same node is the
/// same GPU.
void check_sharing(const manifests& manifests, const lint_options& options, report& out);

}  // namespace gpushm::k8s
