// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "apps/gpushm/k8s/manifest_node.hpp"

namespace gpushm::k8s {

/// A pod, or an object that creates pods.
struct workload {
  std::string file;
  std::string kind;  ///< "Pod", "Deployment", …
  std::string name;
  std::string space;  ///< namespace; empty: unset
  manifest_node object;
  manifest_node spec;                         ///< of the pod
  std::map<std::string, std::string> labels;  ///< of the pod

  /// "Pod ns/name".
  [[nodiscard]] std::string title() const;
  /// All containers: init containers first.
  [[nodiscard]] std::vector<manifest_node> containers() const;
};

/// A ResourceClaim or a ResourceClaimTemplate.
struct claim {
  bool is_template = false;
  std::string name;
  std::string space;
  std::vector<std::string> device_classes;
};

struct unreadable {
  std::string file;
  int line = 0;
  int column = 0;
  std::string text;
};

/// The objects of several files. Thread-safety: distinct objects: safe; shared objects: const
/// members safe.
class manifests {
 public:
  /// Adds a text with any number of YAML or JSON documents. No I/O. Throws only std::bad_alloc.
  void add(std::string_view text, const std::string& file);

  [[nodiscard]] const std::vector<workload>& workloads() const noexcept { return workloads_; }
  [[nodiscard]] const std::vector<claim>& claims() const noexcept { return claims_; }
  [[nodiscard]] const std::vector<unreadable>& problems() const noexcept { return problems_; }
  /// Kubernetes objects of any kind.
  [[nodiscard]] std::size_t objects() const noexcept { return objects_; }

 private:
  void add_object(const manifest_node& object, const std::string& file, int depth);

  std::list<std::list<yaml::tree>> trees_;
  std::vector<workload> workloads_;
  std::vector<claim> claims_;
  std::vector<unreadable> problems_;
  std::size_t objects_ = 0;
};

}  // namespace gpushm::k8s
