// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/k8s/pod_shapes.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "apps/gpushm/k8s/sharing_side.hpp"

namespace gpushm::k8s {

namespace {

using member_list = std::vector<std::pair<std::string, manifest_node>>;

// Bounds the findings about a hostile file; the reader bounds its size and depth.
constexpr std::size_t max_pods = 1'000;

template <typename Names>
bool has(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// A mapping with a field that only containers have.
bool is_container(const manifest_node& value) {
  constexpr auto fields = std::to_array<std::string_view>({"args",
                                                           "command",
                                                           "env",
                                                           "envFrom",
                                                           "image",
                                                           "resources",
                                                           "securityContext",
                                                           "volumeMounts"});
  const member_list members = value.members();
  return std::any_of(members.begin(), members.end(), [&fields](const auto& each) {
    return has(fields, each.first);
  });
}

bool is_container_list(const manifest_node& value) {
  const auto elements = value.elements();
  return std::any_of(elements.begin(), elements.end(), is_container);
}

/// "container", "mainContainer", "workerContainer".
bool names_container(std::string_view key) {
  return key.ends_with("ontainer");
}

bool is_host_switch(std::string_view key) {
  constexpr auto keys = std::to_array<std::string_view>(
      {"hostIPC", "hostNetwork", "hostPID", "shareProcessNamespace"});
  return has(keys, key);
}

/// Whether the mapping requests a GPU or privileges as a container does.
bool requests_as_container(const manifest_node& value) {
  for (const char* part : {"limits", "requests"}) {
    for (const auto& [name, amount] : value["resources"][part].members()) {
      // "gpu": the operators of engines have fields of their own.
      if (name == "gpu" || is_sharing_resource(name)) {
        return true;
      }
    }
  }
  const manifest_node context = value["securityContext"];
  return context["privileged"].is_true() || !context["capabilities"]["add"].elements().empty();
}

class search {
 public:
  void visit(const manifest_node& value,
             const std::string& path,
             const manifest_node& metadata = {}) {
    if (found_.size() >= max_pods) {
      return;
    }
    const member_list members = value.members();
    if (!members.empty()) {
      visit_mapping(value, members, path, metadata);
      return;
    }
    std::size_t index = 0;
    for (const manifest_node& each : value.elements()) {
      visit(each, fmt::format("{}[{}]", path, index++));
    }
  }

  [[nodiscard]] std::vector<found_pod> take() { return std::move(found_); }

 private:
  void visit_mapping(const manifest_node& value,
                     const member_list& members,
                     const std::string& path,
                     const manifest_node& metadata) {
    found_pod pod{value, metadata, path};
    bool has_list = false;
    bool has_switch = false;
    for (const auto& [key, member] : members) {
      has_list = has_list ||
                 ((key == "containers" || key == "initContainers") && is_container_list(member));
      has_switch = has_switch || (is_host_switch(key) && member.is_true());
      if (names_container(key) && is_container(member)) {
        pod.loose_containers.push_back(member);
      }
    }
    const bool is_loose = !pod.loose_containers.empty();
    const bool is_itself = !has_list && !is_loose && requests_as_container(value);
    if (is_itself || (has_switch && !has_list && !is_loose && is_container(value))) {
      pod.loose_containers.push_back(value);
    }
    const bool is_pod = has_list || is_loose || is_itself || has_switch;
    if (is_pod) {
      pod.partial = !has_list;
      found_.push_back(std::move(pod));
    }
    if (has_list) {
      return;
    }
    for (const auto& [key, member] : members) {
      const bool consumed = is_pod && (names_container(key) || key == "securityContext" ||
                                       key == "resources" || key == "volumes");
      if (!consumed) {
        const bool is_spec = key == "spec";
        // The path of a template is the one that holds its metadata and its pod.
        std::string below = path;
        if (!is_spec || !path.ends_with("emplate")) {
          below.append(".").append(key);
        }
        visit(member, below, is_spec ? value["metadata"] : manifest_node());
      }
    }
  }

  std::vector<found_pod> found_;
};

}  // namespace

std::vector<found_pod> find_pods(const manifest_node& object) {
  search pods;
  for (const auto& [key, member] : object.members()) {
    if (key != "metadata" && key != "status") {
      pods.visit(member, key, key == "spec" ? object["metadata"] : manifest_node());
    }
  }
  return pods.take();
}

}  // namespace gpushm::k8s
