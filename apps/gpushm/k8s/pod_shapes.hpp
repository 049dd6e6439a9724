// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "apps/gpushm/k8s/manifest_node.hpp"

namespace gpushm::k8s {

/// A pod that was found by its shape in an object of any kind.
struct found_pod {
  manifest_node spec;
  manifest_node metadata;  ///< beside `spec`; missing: none
  std::string path;        ///< "spec.headGroupSpec.template"
  /// Containers outside a list `containers`: "mainContainer", or `spec` itself if an operator
  /// merges the fields of the pod and its container.
  std::vector<manifest_node> loose_containers = {};
  /// It has no list of containers: the operator adds the rest of the pod, so a missing setting
  /// means nothing.
  bool partial = false;
};

/// Returns the pods in `object`, at any depth, in the order of the file. Searches neither
/// `metadata` nor `status`. Pure.
[[nodiscard]] std::vector<found_pod> find_pods(const manifest_node& object);

}  // namespace gpushm::k8s
