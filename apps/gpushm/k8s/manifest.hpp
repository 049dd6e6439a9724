// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "apps/gpushm/k8s/manifest_node.hpp"

namespace gpushm::k8s {

/// A pod, or the pods that an object creates from one template.
struct workload {
  std::string file;
  std::string kind;  ///< "Pod", "Deployment", …
  std::string name;
  std::string space;  ///< namespace; empty: unset
  manifest_node object;
  manifest_node spec;                         ///< of the pod
  std::map<std::string, std::string> labels;  ///< of the pod
  /// Where the pod is in an object of a kind that Kubernetes does not define:
  /// "spec.headGroupSpec.template".
  std::string path = {};
  std::vector<manifest_node> loose_containers = {};  ///< as in `found_pod`
  bool partial = false;                              ///< as in `found_pod`

  /// "Pod ns/name", "RayCluster ns/name, spec.headGroupSpec.template".
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

/// An object that creates pods which are not, or not completely, in its manifest.
struct unread_object {
  std::string file;
  int line = 0;
  int column = 0;
  std::string kind;
  std::string object;  ///< "NIMService ns/name"
  std::string why;
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
  /// Objects whose pods are not known: of kinds that Kubernetes does not define, without a pod in
  /// them, or with containers outside a pod's specification.
  [[nodiscard]] const std::vector<unread_object>& unread() const noexcept { return unread_; }
  /// Kubernetes objects of any kind.
  [[nodiscard]] std::size_t objects() const noexcept { return objects_; }

 private:
  /// The type of an object that does not state it: an item of a list.
  struct object_type {
    std::string api_version;
    std::string kind;
  };
  void add_object(const manifest_node& object,
                  const std::string& file,
                  int depth,
                  const object_type& inherited);
  void add_list(const manifest_node& list,
                const std::string& file,
                int depth,
                const object_type& type);
  void add_workloads(const manifest_node& object, const std::string& file, const object_type& type);
  void add_by_shape(const workload& owner, const object_type& type);

  std::list<std::list<yaml::tree>> trees_;
  std::vector<workload> workloads_;
  std::vector<claim> claims_;
  std::vector<unreadable> problems_;
  std::vector<unread_object> unread_;
  std::size_t objects_ = 0;
};

}  // namespace gpushm::k8s
