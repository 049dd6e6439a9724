// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the files of the injection share among themselves.

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "cdi/inject/inject.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cdi {

/// The edits of one owner on their way into a config.
struct editing {
  oci_config& config;
  const std::string& device;
  std::vector<applied_edit>& done;

  void note(std::string text) const { done.push_back({device, std::move(text)}); }
  [[noreturn]] void refuse(errc code, std::string_view cause, std::string_view next = {}) const {
    throw error(code, "inject", device, cause, next);
  }
};

/// The object or array `path` ("linux.resources.devices"), made where there is none; null counts as
/// none. Throws `error` (invalid_argument) when something on the way is of another type.
oci_config& object_at(oci_config& config, std::string_view path);
oci_config& array_at(oci_config& config, std::string_view path);
/// The same for looking; nothing when there is none.
const oci_config* find_object(const oci_config& config, std::string_view path);
const oci_config* find_array(const oci_config& config, std::string_view path);
/// The text `key` of an object; empty when there is none. Throws as above; `where` is the object's
/// path for errors.
std::string_view text_at(const oci_config& object, const char* key, std::string_view where);
/// The name of a variable "NAME=value"; throws when `line` is no text.
std::string_view variable_name(const oci_config& line);

// Each applies its kind of edits.
void apply_environment(const edits& changes, const editing& to);
void apply_device_nodes(const edits& changes, const editing& to);
void apply_net_devices(const edits& changes, const editing& to);
void apply_mounts(const edits& changes, const editing& to);
void apply_hooks(const edits& changes, const editing& to);
void apply_rdt(const edits& changes, const editing& to);
void apply_groups(const edits& changes, const editing& to);

/// Throws `error` (invalid_argument) when a path of the edits could name something else than it
/// says.
void check_paths(const edits& changes, const std::string& device);

/// Type, numbers and mode of a node, asked from the host where the document leaves them out. Throws
/// `error`.
[[nodiscard]] device_node completed(const device_node& node, const std::string& device);

/// Calls `visit` with each name of a path. Documents have hundreds of paths: no list is made.
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

/// Whether the mount makes a file or directory of the host appear: then its host path is one.
[[nodiscard]] bool is_bind(const mount& each);

/// As the config has it. `in_user_namespace` adds the option that maps ids.
[[nodiscard]] oci_config to_oci(const mount& each, bool in_user_namespace);
[[nodiscard]] oci_config to_oci(const hook& each);
[[nodiscard]] oci_config to_oci(const intel_rdt& rdt);
[[nodiscard]] bool has_user_namespace(const oci_config& config);
/// {"allow":true,"type":"c","major":195,"minor":0,"access":"rwm"}; null for what the cgroup does
/// not know.
[[nodiscard]] oci_config cgroup_rule(const device_node& complete);

}  // namespace gpushm::cdi
