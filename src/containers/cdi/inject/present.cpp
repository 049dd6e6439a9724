// SPDX-License-Identifier: Apache-2.0
// Finds the edits that a config already has.
#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "containers/cdi/inject/parts.hpp"

namespace gpushm::cdi {

namespace {

template <typename Predicate>
bool any_in(const oci_config* list, Predicate&& matches) {
  return list != nullptr && std::any_of(list->begin(), list->end(), matches);
}

template <typename List, typename Predicate>
void drop_if(List& list, Predicate&& present) {
  list.erase(std::remove_if(list.begin(), list.end(), present), list.end());
}

// Whether `object` has each member of `config` with an equal value.
bool has_members(const oci_config& object, const oci_config& config) {
  if (!object.is_object()) {
    return false;
  }
  for (const auto& [key, value] : config.items()) {
    const auto found = object.find(key);
    if (found == object.end() || *found != value) {
      return false;
    }
  }
  return true;
}

bool has_node(const oci_config& config, const device_node& node) {
  const bool placed = any_in(find_array(config, "linux.devices"), [&](const oci_config& each) {
    return has_members(
        each,
        {{"path", node.path}, {"type", node.type}, {"major", node.major}, {"minor", node.minor}});
  });
  const oci_config rule = cgroup_rule(node);
  return placed && (rule.is_null() || any_in(find_array(config, "linux.resources.devices"),
                                             [&](const oci_config& each) { return each == rule; }));
}

// Pairs of destination and source. Built once: documents and configs may have many mounts.
std::set<std::pair<std::string_view, std::string_view>> mounts_of(const oci_config& config) {
  std::set<std::pair<std::string_view, std::string_view>> pairs;
  if (const oci_config* mounts = find_array(config, "mounts")) {
    for (const oci_config& each : *mounts) {
      pairs.emplace(text_at(each, "destination", "mounts"), text_at(each, "source", "mounts"));
    }
  }
  return pairs;
}

bool has_hook(const oci_config& config, const hook& hook) {
  std::string path = "hooks.";
  path += hook.name;
  return any_in(find_array(config, path),
                [created = to_oci(hook)](const oci_config& each) { return each == created; });
}

std::unordered_set<std::string_view> lines_of(const oci_config& config) {
  std::unordered_set<std::string_view> result;
  if (const oci_config* lines = find_array(config, "process.env")) {
    for (const oci_config& each : *lines) {
      if (each.is_string()) {
        result.insert(each.get_ref<const std::string&>());
      }
    }
  }
  return result;
}

bool has_net_device(const oci_config& config, const net_device& device) {
  const oci_config* all = find_object(config, "linux.netDevices");
  const auto found =
      all == nullptr ? oci_config::const_iterator() : all->find(device.host_interface_name);
  return all != nullptr && found != all->end() && has_members(*found, {{"name", device.name}});
}

bool has_group(const oci_config& config, std::uint32_t gid) {
  return any_in(find_array(config, "process.user.additionalGids"),
                [wanted = oci_config(gid)](const oci_config& each) { return each == wanted; });
}

}  // namespace

edits without_present(const edits& changes, const oci_config& config) {
  edits left = changes;
  if (!left.env.empty()) {
    drop_if(left.env, [present = lines_of(config)](const std::string& line) {
      return present.contains(line);
    });
  }
  drop_if(left.device_nodes,
          [&](const device_node& node) { return has_node(config, completed(node, node.path)); });
  drop_if(left.net_devices, [&](const net_device& each) { return has_net_device(config, each); });
  if (!left.mounts.empty()) {
    drop_if(left.mounts, [present = mounts_of(config)](const mount& each) {
      return present.contains({each.container_path, each.host_path});
    });
  }
  drop_if(left.hooks, [&](const hook& each) { return has_hook(config, each); });
  drop_if(left.additional_gids,
          [&](std::uint32_t gid) { return gid == 0 || has_group(config, gid); });
  if (left.rdt) {
    const oci_config* present = find_object(config, "linux.intelRdt");
    if (present != nullptr && *present == to_oci(*left.rdt)) {
      left.rdt.reset();
    }
  }
  return left;
}

}  // namespace gpushm::cdi
