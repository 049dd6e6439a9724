// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>

#include "apps/gpushm/k8s/finding.hpp"

namespace gpushm::k8s {

struct lint_options {
  /// The cluster's nodes have one GPU each, so the same node is the same GPU.
  bool one_gpu_nodes = false;
  /// Resources that are one GPU each, in addition to `nvidia.com/gpu-N` and `nvidia.com/mig-N-M`:
  /// names that a device plugin's configuration gives to time slices of one GPU.
  std::set<std::string> one_gpu_resources = {};
  /// Kinds whose objects are not reported if their pods are not known ("kind-not-read").
  std::set<std::string> ignored_kinds = {};
  /// The device plugin offers each GPU as a resource, "gpushm.dev/gpu-N", which findings may then
  /// propose; also detected from its use in a manifest.
  bool per_gpu_resources = false;
};

/// Returns the findings in the order of files and lines, including texts that are not manifests
/// (rule "syntax"). Pure.
[[nodiscard]] std::vector<finding> lint(const manifests& manifests,
                                        const lint_options& options = {});

}  // namespace gpushm::k8s
