// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <unordered_set>

#include "containers/cdi/inject/parts.hpp"

namespace gpushm::cdi {

namespace {

bool has_option(const mount& mount, std::string_view option) {
  return std::find(mount.options.begin(), mount.options.end(), option) != mount.options.end();
}

// The files of a bind mount keep their owners in a user namespace only when IDs are mapped. The
// last "bind" or "rbind" selects the option, as for the kernel's flags.
std::string_view mapping_option(const mount& mount) {
  std::string_view option = mount.type == "bind" ? "idmap" : "";
  for (const std::string& present : mount.options) {
    if (present == "idmap" || present == "ridmap") {
      return {};
    }
    if (present == "bind") {
      option = "idmap";
    } else if (present == "rbind") {
      option = "ridmap";
    }
  }
  return option;
}

// Mounts are sorted by this depth: parents first. "/" has the same depth as "/a".
std::size_t depth_of(std::string_view destination) {
  std::size_t depth = 0;
  for_each_part(destination, [&](std::string_view part) {
    if (part == "..") {
      depth -= depth > 0 ? 1 : 0;
    } else if (part != ".") {
      ++depth;
    }
  });
  return destination.starts_with('/') ? std::max<std::size_t>(depth, 1)
                                      : depth - (depth > 0 ? 1 : 0);
}

void sort_by_depth(oci_config& mounts) {
  struct placed {
    std::size_t depth = 0;
    oci_config mount;
  };
  std::vector<placed> order;
  order.reserve(mounts.size());
  for (oci_config& each : mounts) {
    const std::size_t depth = depth_of(text_at(each, "destination", "mounts"));
    order.push_back({depth, std::move(each)});
  }
  std::stable_sort(order.begin(), order.end(), [](const placed& left, const placed& right) {
    return left.depth < right.depth;
  });
  for (std::size_t i = 0; i < order.size(); ++i) {
    mounts[i] = std::move(order[i].mount);
  }
}

std::string described(const mount& mount, bool replaces) {
  std::string text = "mount ";
  text += mount.host_path;
  text += " at ";
  text += mount.container_path;
  text += replaces ? " (replaces another)" : "";
  return text;
}

}  // namespace

bool is_bind(const mount& mount) {
  return mount.type.empty() || mount.type == "bind" || mount.type == "none" ||
         has_option(mount, "bind") || has_option(mount, "rbind");
}

bool has_user_namespace(const oci_config& config) {
  const oci_config* namespaces = find_array(config, "linux.namespaces");
  return namespaces != nullptr &&
         std::any_of(namespaces->begin(), namespaces->end(), [](const oci_config& each) {
           return text_at(each, "type", "linux.namespaces") == "user";
         });
}

oci_config to_oci(const mount& mount, bool in_user_namespace) {
  oci_config created{{"destination", mount.container_path}};
  if (!mount.type.empty()) {
    created["type"] = mount.type;
  }
  created["source"] = mount.host_path;
  oci_config options = mount.options;
  if (in_user_namespace) {
    if (const auto option = mapping_option(mount); !option.empty()) {
      options.push_back(option);
    }
  }
  if (!options.empty()) {
    created["options"] = std::move(options);
  }
  return created;
}

void apply_mounts(const edits& changes, const editing& editing) {
  if (changes.mounts.empty()) {
    return;
  }
  const bool in_user_namespace = has_user_namespace(editing.config);
  oci_config& mounts = array_at(editing.config, "mounts");
  // Avoids searching the list for mounts that are not in it.
  std::unordered_set<std::string> destinations;
  for (const oci_config& present : mounts) {
    destinations.emplace(text_at(present, "destination", "mounts"));
  }
  for (const mount& each : changes.mounts) {
    const bool replaces = !destinations.insert(each.container_path).second;
    if (replaces) {
      mounts.erase(std::find_if(mounts.begin(), mounts.end(), [&](const oci_config& present) {
        return text_at(present, "destination", "mounts") == each.container_path;
      }));
    }
    mounts.push_back(to_oci(each, in_user_namespace));
    editing.note(described(each, replaces));
  }
  sort_by_depth(mounts);
}

}  // namespace gpushm::cdi
