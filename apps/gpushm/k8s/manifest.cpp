// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/k8s/manifest.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

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
  static const std::vector<kind_row> all{{"Pod", {}},
                                         {"Deployment", {"spec", "template"}},
                                         {"DaemonSet", {"spec", "template"}},
                                         {"StatefulSet", {"spec", "template"}},
                                         {"ReplicaSet", {"spec", "template"}},
                                         {"ReplicationController", {"spec", "template"}},
                                         {"Job", {"spec", "template"}},
                                         {"CronJob", {"spec", "jobTemplate", "spec", "template"}}};
  return all;
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

}  // namespace

std::string workload::title() const {
  return fmt::format(
      "{} {}{}{}", kind, space, space.empty() ? "" : "/", name.empty() ? "without a name" : name);
}

std::vector<manifest_node> workload::containers() const {
  std::vector<manifest_node> all = spec["initContainers"].elements();
  for (const manifest_node& each : spec["containers"].elements()) {
    all.push_back(each);
  }
  return all;
}

void manifests::add(std::string_view text, const std::string& file) {
  std::list<yaml::tree>& documents = trees_.emplace_back();
  yaml::read_yaml_documents(text, documents);
  for (const yaml::tree& each : documents) {
    if (each.failure) {
      problems_.push_back({file, each.failure->line, each.failure->column, each.failure->text});
    } else if (each.root != nullptr) {
      add_object(manifest_node(each.root), file, 0);
    }
  }
}

void manifests::add_object(const manifest_node& object, const std::string& file, int depth) {
  const std::string kind = object["kind"].text();
  if (!object) {
    return;
  }
  if (kind.empty() || !object["apiVersion"]) {
    problems_.push_back({file,
                         object.line(),
                         object.column(),
                         "not a Kubernetes object: apiVersion or kind is missing"});
    return;
  }
  if (kind == "List" && depth < deepest_list) {
    for (const manifest_node& each : object["items"].elements()) {
      add_object(each, file, depth + 1);
    }
    return;
  }
  ++objects_;
  const manifest_node meta = object["metadata"];
  if (kind == "ResourceClaim" || kind == "ResourceClaimTemplate") {
    const bool is_template = kind == "ResourceClaimTemplate";
    const manifest_node spec = is_template ? object["spec"]["spec"] : object["spec"];
    claims_.push_back(
        {is_template, meta["name"].text(), meta["namespace"].text(), classes_of(spec)});
    return;
  }
  const auto row = std::find_if(
      kinds().begin(), kinds().end(), [&kind](const kind_row& each) { return each.kind == kind; });
  if (row == kinds().end()) {
    return;
  }
  manifest_node pod = object;
  for (const std::string_view step : row->path) {
    pod = pod[step];
  }
  workload found{file,
                 kind,
                 meta["name"].or_else(meta["generateName"]).text(),
                 meta["namespace"].text(),
                 object,
                 pod["spec"],
                 {}};
  for (const auto& [key, value] : pod["metadata"]["labels"].members()) {
    found.labels[key] = value.text();
  }
  workloads_.push_back(std::move(found));
}

}  // namespace gpushm::k8s
