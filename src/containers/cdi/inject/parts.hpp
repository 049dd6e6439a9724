// SPDX-License-Identifier: Apache-2.0
#pragma once

// Declarations shared by the files of the injection.

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "containers/cdi/inject/inject.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cdi {

/// The state of applying one device's edits to a config.
struct editing {
  oci_config& config;
  const std::string& device;
  std::vector<applied_edit>& done;

  void note(std::string text) const { done.push_back({device, std::move(text)}); }
  [[noreturn]] void refuse(errc code, std::string_view cause, std::string_view next = {}) const {
    throw error(code, "inject", device, cause, next);
  }
};

/// The object or array `path` ("linux.resources.devices"), created if missing or null. Throws
/// `error` (invalid_argument) when a member of the path has another type.
oci_config& object_at(oci_config& config, std::string_view path);
oci_config& array_at(oci_config& config, std::string_view path);
/// The same without creating; nullptr if missing.
const oci_config* find_object(const oci_config& config, std::string_view path);
const oci_config* find_array(const oci_config& config, std::string_view path);
/// The string `key` of an object; empty if missing. Throws as above; `where` is the object's path
/// for errors.
std::string_view text_at(const oci_config& object, const char* key, std::string_view where);
/// The name of a variable "NAME=value"; throws when `line` is not a string.
std::string_view variable_name(const oci_config& line);

// Each applies one kind of edits.
void apply_environment(const edits& changes, const editing& editing);
void apply_device_nodes(const edits& changes, const editing& editing);
void apply_net_devices(const edits& changes, const editing& editing);
void apply_mounts(const edits& changes, const editing& editing);
void apply_hooks(const edits& changes, const editing& editing);
void apply_rdt(const edits& changes, const editing& editing);
void apply_groups(const edits& changes, const editing& editing);

/// Throws `error` (invalid_argument) when a path of the edits is ambiguous or leads elsewhere.
void check_paths(const edits& changes, const std::string& device);

/// Type, numbers and mode of a node; reads those that the document omits from the host. Throws
/// `error`.
[[nodiscard]] device_node completed(const device_node& node, const std::string& device);

/// Calls `visit` with each name of a path. Allocates no list: documents have hundreds of paths.
template <typename Visit>
void for_each_part(std::string_view path, Visit&& visit) {
  while (!path.empty()) {
    const auto end = std::min(path.find('/'), path.size());
    if (end > 0) {
      visit(path.substr(0, end));
    }
    path.remove_prefix(std::min(end + 1, path.size()));
  }
}

/// Whether the mount binds a file or directory of the host; its host path is then a path.
[[nodiscard]] bool is_bind(const mount& mount);

/// The OCI form. `in_user_namespace` adds the option that maps IDs.
[[nodiscard]] oci_config to_oci(const mount& mount, bool in_user_namespace);
[[nodiscard]] oci_config to_oci(const hook& hook);
[[nodiscard]] oci_config to_oci(const intel_rdt& rdt);
[[nodiscard]] bool has_user_namespace(const oci_config& config);
/// {"allow":true,"type":"c","major":195,"minor":0,"access":"rwm"}; null for types that the cgroup
/// does not control.
[[nodiscard]] oci_config cgroup_rule(const device_node& complete);

}  // namespace gpushm::cdi
