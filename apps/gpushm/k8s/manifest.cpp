// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/k8s/manifest.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "apps/gpushm/k8s/object_kinds.hpp"
#include "apps/gpushm/k8s/pod_shapes.hpp"

namespace gpushm::k8s {

namespace {

// Kubernetes has no nested lists, but a manifest can contain them.
constexpr int deepest_list = 4;

/// Where the pod is in an object of a kind.
struct kind_row {
  std::string_view kind;
  std::vector<std::string_view> path;
};

const std::vector<kind_row>& kinds() {
  static const std::vector<kind_row> rows{{"Pod", {}},
                                          {"Deployment", {"spec", "template"}},
                                          {"DaemonSet", {"spec", "template"}},
                                          {"StatefulSet", {"spec", "template"}},
                                          {"ReplicaSet", {"spec", "template"}},
                                          {"ReplicationController", {"spec", "template"}},
                                          {"Job", {"spec", "template"}},
                                          {"CronJob", {"spec", "jobTemplate", "spec", "template"}},
                                          {"PodTemplate", {"template"}}};
  return rows;
}

std::vector<std::string> classes_of(const manifest_node& spec) {
  std::vector<std::string> classes;
  for (const manifest_node& request : spec["devices"]["requests"].elements()) {
    for (const manifest_node& where : {request, request["exactly"]}) {
      if (where["deviceClassName"]) {
        classes.push_back(where["deviceClassName"].text());
      }
    }
    for (const manifest_node& each : request["firstAvailable"].elements()) {
      classes.push_back(each["deviceClassName"].text());
    }
  }
  return classes;
}

void add_labels(const manifest_node& metadata, workload& workload) {
  for (const auto& [key, value] : metadata["labels"].members()) {
    workload.labels[key] = value.text();
  }
}

}  // namespace

std::string workload::title() const {
  return fmt::format("{} {}{}{}{}{}",
                     kind,
                     space,
                     space.empty() ? "" : "/",
                     name.empty() ? "without a name" : name,
                     path.empty() ? "" : ", ",
                     path);
}

std::vector<manifest_node> workload::containers() const {
  std::vector<manifest_node> nodes = spec["initContainers"].elements();
  for (const manifest_node& each : spec["containers"].elements()) {
    nodes.push_back(each);
  }
  nodes.insert(nodes.end(), loose_containers.begin(), loose_containers.end());
  return nodes;
}

void manifests::add(std::string_view text, const std::string& file) {
  std::list<yaml::tree>& documents = trees_.emplace_back();
  yaml::read_yaml_documents(text, documents);
  for (const yaml::tree& each : documents) {
    if (each.failure) {
      problems_.push_back({file, each.failure->line, each.failure->column, each.failure->text});
    } else if (each.root != nullptr) {
      add_object(manifest_node(each.root), file, 0, {});
    }
  }
}

void manifests::add_list(const manifest_node& list,
                         const std::string& file,
                         int depth,
                         const object_type& type) {
  // The API server's lists have items without a type.
  const std::string element = type.kind.substr(0, type.kind.size() - std::string("List").size());
  const object_type inherited =
      element.empty() ? object_type() : object_type{type.api_version, element};
  for (const manifest_node& each : list["items"].elements()) {
    add_object(each, file, depth + 1, inherited);
  }
}

void manifests::add_object(const manifest_node& object,
                           const std::string& file,
                           int depth,
                           const object_type& inherited) {
  if (!object) {
    return;
  }
  const bool has_type = object["kind"] || inherited.kind.empty();
  const object_type type =
      has_type ? object_type{object["apiVersion"].text(), object["kind"].text()} : inherited;
  if (type.kind.empty() || type.api_version.empty()) {
    problems_.push_back({file,
                         object.line(),
                         object.column(),
                         "not a Kubernetes object: apiVersion or kind is missing"});
    return;
  }
  if (type.kind.ends_with("List") && (type.kind == "List" || object["items"]) &&
      depth < deepest_list) {
    add_list(object, file, depth, type);
    return;
  }
  ++objects_;
  if (is_builtin_group(type.api_version) &&
      (type.kind == "ResourceClaim" || type.kind == "ResourceClaimTemplate")) {
    const bool is_template = type.kind == "ResourceClaimTemplate";
    const manifest_node spec = is_template ? object["spec"]["spec"] : object["spec"];
    const manifest_node meta = object["metadata"];
    claims_.push_back(
        {is_template, meta["name"].text(), meta["namespace"].text(), classes_of(spec)});
    return;
  }
  add_workloads(object, file, type);
}

void manifests::add_workloads(const manifest_node& object,
                              const std::string& file,
                              const object_type& type) {
  const manifest_node meta = object["metadata"];
  workload owner{file,
                 type.kind,
                 meta["name"].or_else(meta["generateName"]).text(),
                 meta["namespace"].text(),
                 object,
                 {},
                 {}};
  const auto row = std::find_if(kinds().begin(), kinds().end(), [&type](const kind_row& each) {
    return each.kind == type.kind;
  });
  if (row == kinds().end() || !is_builtin_group(type.api_version)) {
    add_by_shape(owner, type);
    return;
  }
  manifest_node pod = object;
  for (const std::string_view step : row->path) {
    pod = pod[step];
  }
  owner.spec = pod["spec"];
  add_labels(pod["metadata"], owner);
  workloads_.push_back(std::move(owner));
}

void manifests::add_by_shape(const workload& owner, const object_type& type) {
  const kind_role role = role_of(type.api_version, type.kind);
  if (role == kind_role::patterns) {
    return;
  }
  const std::vector<found_pod> pods = find_pods(owner.object);
  std::string partial;
  for (const found_pod& each : pods) {
    workload workload = owner;
    workload.spec = each.spec;
    workload.path = each.path;
    workload.loose_containers = each.loose_containers;
    workload.partial = each.partial;
    add_labels(each.metadata, workload);
    partial = partial.empty() && each.partial ? each.path : partial;
    workloads_.push_back(std::move(workload));
  }
  if (role == kind_role::no_pods || (!pods.empty() && partial.empty())) {
    return;
  }
  const manifest_node place = owner.object["kind"].or_else(owner.object);
  unread_.push_back(
      {owner.file,
       place.line(),
       place.column(),
       type.kind,
       owner.title(),
       partial.empty()
           ? fmt::format("No pod was found in this object: the pods that a controller of {} may "
                         "create from it are not checked. Check them in the cluster: kubectl get "
                         "pods -o yaml | gpushm k8s lint -  (a kind that creates no pods: "
                         "--ignore-kind {})",
                         type.api_version,
                         type.kind)
           : fmt::format("{} is a part of a pod: what it requests is checked, what the controller "
                         "of {} adds to it is not. Check the pods in the cluster: kubectl get pods "
                         "-o yaml | gpushm k8s lint -  (accept the part: --ignore-kind {})",
                         partial,
                         type.api_version,
                         type.kind)});
}

}  // namespace gpushm::k8s
