// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "apps/gpushm/k8s/finding.hpp"
#include "apps/gpushm/k8s/lint.hpp"

namespace gpushm::k8s {

/// A rule about pods each for itself.
struct pod_rule {
  std::string_view name;
  void (*check)(const workload& pod, report& out);
};
[[nodiscard]] std::span<const pod_rule> pod_rules();

/// A rule about containers each for itself.
struct container_rule {
  std::string_view name;
  void (*check)(const workload& pod, const manifest_node& container, report& out);
};
[[nodiscard]] std::span<const container_rule> container_rules();

/// Whether pods that can share are promised the same node, GPU and claim: gpu-not-promised,
/// node-not-promised, claim-not-shared.
/// `one_gpu_nodes`: the same node is the same GPU.
void check_sharing(const manifests& all, const lint_options& options, report& out);

}  // namespace gpushm::k8s
