// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "k8s/finding.hpp"

namespace gpushm::k8s {

struct lint_options {
  /// The cluster's nodes have one GPU each: the same node is the same GPU.
  bool one_gpu_nodes = false;
};

/// What is to be said of the manifests, in the order of their files and lines; texts that are no
/// manifests too (rule "syntax"). Pure.
[[nodiscard]] std::vector<finding> lint(const manifests& all, const lint_options& options = {});

}  // namespace gpushm::k8s
