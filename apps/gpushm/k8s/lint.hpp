// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>

#include "apps/gpushm/k8s/finding.hpp"

namespace gpushm::k8s {

struct lint_options {
  /// The cluster's nodes have one GPU each: the same node is the same GPU.
  bool one_gpu_nodes = false;
  /// Resources that are one GPU each, beside `nvidia.com/gpu-N` and `nvidia.com/mig-N-M`: names
  /// that a device plugin's configuration gave to time slices of one GPU.
  std::set<std::string> one_gpu_resources = {};
};

/// What is to be said of the manifests, in the order of their files and lines; texts that are no
/// manifests too (rule "syntax"). Pure.
[[nodiscard]] std::vector<finding> lint(const manifests& all, const lint_options& options = {});

}  // namespace gpushm::k8s
