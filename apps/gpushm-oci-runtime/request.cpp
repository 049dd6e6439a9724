// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-oci-runtime/request.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "apps/gpushm-oci-runtime/provenance.hpp"
#include "base/text/text.hpp"
#include "containers/cdi/document/name.hpp"
#include "gpushm/error.hpp"

namespace gpushm::oci_runtime {

namespace {

using cdi::oci_config;

constexpr std::string_view devices_variable = "NVIDIA_VISIBLE_DEVICES";
constexpr std::string_view capabilities_variable = "NVIDIA_DRIVER_CAPABILITIES";
/// The prefix of engines and of Kubernetes' device plugins.
constexpr std::string_view usual_prefix = "cdi.k8s.io/";
constexpr std::string_view mounts_root = "/var/run/nvidia-container-devices/";

const oci_config* member(const oci_config* object, const char* key) {
  if (object == nullptr || !object->is_object()) {
    return nullptr;
  }
  const auto found = object->find(key);
  return found == object->end() ? nullptr : &*found;
}

std::string text_of(const oci_config* value) {
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

// The last assignment applies, as in the container's process.
std::optional<std::string> variable(const oci_config& config, std::string_view name) {
  std::optional<std::string> value;
  const oci_config* lines = member(member(&config, "process"), "env");
  if (lines == nullptr || !lines->is_array()) {
    return value;
  }
  for (const oci_config& line : *lines) {
    const std::string text = text_of(&line);
    if (text.starts_with(name) && text.substr(name.size()).starts_with('=')) {
      value = text.substr(name.size() + 1);
    }
  }
  return value;
}

// The same test as in NVIDIA's runtime: engines grant this capability to privileged containers
// only.
bool is_privileged(const oci_config& config) {
  const oci_config* set = member(member(member(&config, "process"), "capabilities"), "bounding");
  return set != nullptr && set->is_array() &&
         std::find(set->begin(), set->end(), oci_config("CAP_SYS_ADMIN")) != set->end();
}

std::vector<std::string_view> listed(std::string_view text) {
  std::vector<std::string_view> names;
  for (const std::string_view part : base::split(text, ",")) {
    if (const auto name = base::trim(part); !name.empty()) {
      names.push_back(name);
    }
  }
  return names;
}

std::string assignment_text(std::string_view name, std::string_view value) {
  return fmt::format("{}={}", name, value);
}

void read_annotations(const oci_config& config, const settings& chosen, request& out) {
  const oci_config* annotations = member(&config, "annotations");
  if (annotations == nullptr || !annotations->is_object()) {
    return;
  }
  const permission allowed = permitted(source::annotation, chosen, is_privileged(config));
  std::map<std::string, std::string> asking;
  for (const auto& [key, value] : annotations->items()) {
    if (std::any_of(chosen.annotation_prefixes.begin(),
                    chosen.annotation_prefixes.end(),
                    [&key = key](const std::string& prefix) { return key.starts_with(prefix); })) {
      asking.emplace(key, text_of(&value));
    } else if (!allowed.accepted && key.starts_with(usual_prefix)) {
      out.ignored.push_back(fmt::format("annotation {}: {}", key, allowed.why_not));
    }
  }
  for (const auto& [key, value] : asking) {
    for (const std::string_view name : listed(value)) {
      if (!cdi::parse_qualified_name(name)) {
        throw error(
            errc::invalid_argument,
            "read annotation",
            key,
            fmt::format("\"{}\" is not the qualified name of a device, such as nvidia.com/gpu=0",
                        name));
      }
      out.devices.push_back({std::string(name), "annotation " + key});
    }
  }
}

// "cdi/nvidia.com/gpu/0" and "cdi/nvidia.com/gpu=0" are qualified names; anything else is used
// unchanged.
std::string device_of_mount(std::string_view place) {
  constexpr std::string_view prefix = "cdi/";
  if (!place.starts_with(prefix)) {
    return std::string(place);
  }
  std::string name(place.substr(prefix.size()));
  if (!cdi::parse_qualified_name(name)) {
    const auto slash = name.find('/');
    const auto second = slash == std::string::npos ? slash : name.find('/', slash + 1);
    if (second != std::string::npos) {
      name[second] = '=';
    }
  }
  return name;
}

void read_mounts(const oci_config& config, const settings& chosen, request& out) {
  const oci_config* mounts = member(&config, "mounts");
  if (mounts == nullptr || !mounts->is_array()) {
    return;
  }
  const permission allowed = permitted(source::mount, chosen, is_privileged(config));
  for (const oci_config& each : *mounts) {
    const std::string origin =
        std::filesystem::path(text_of(member(&each, "source"))).lexically_normal();
    const std::string place =
        std::filesystem::path(text_of(member(&each, "destination"))).lexically_normal();
    if (origin != "/dev/null" || !place.starts_with(mounts_root) ||
        place.size() == mounts_root.size()) {
      continue;
    }
    std::string_view requested = std::string_view(place).substr(mounts_root.size());
    if (requested.ends_with('/')) {
      requested.remove_suffix(1);
    }
    if (!allowed.accepted) {
      out.ignored.push_back(fmt::format("mount {}: {}", place, allowed.why_not));
    } else if (requested.starts_with("imex/")) {
      out.ignored.push_back(fmt::format("mount {}: IMEX channels are not provided", place));
    } else {
      requested_device device{device_of_mount(requested), "mount " + place};
      if (std::find(out.devices.begin(), out.devices.end(), device) == out.devices.end()) {
        out.devices.push_back(std::move(device));
      }
    }
  }
}

void check_kind(std::string_view name, const permission& allowed, const settings& chosen) {
  const auto qualified = cdi::parse_qualified_name(name);
  if (!allowed.any_kind && qualified && qualified->kind != chosen.default_kind) {
    throw error(errc::invalid_argument,
                fmt::format("read {}", devices_variable),
                name,
                "it names a device of another kind than " + chosen.default_kind,
                "request it from the engine, for instance by --device");
  }
}

void read_variable(const oci_config& config, const settings& chosen, request& out) {
  const auto value = variable(config, devices_variable);
  const auto names = value ? listed(*value) : std::vector<std::string_view>();
  const auto has = [&](std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (names.empty() || has("void")) {
    return;
  }
  const std::string reason = assignment_text(devices_variable, *value);
  const permission allowed = permitted(source::variable, chosen, is_privileged(config));
  if (!allowed.accepted) {
    out.ignored.push_back(fmt::format("{}: {}", reason, allowed.why_not));
    return;
  }
  // "all" or "none" overrides the other names.
  for (const char* word : {"all", "none"}) {
    if (has(word)) {
      out.devices.push_back({word, reason});
      return;
    }
  }
  for (const std::string_view name : names) {
    check_kind(name, allowed, chosen);
    out.devices.push_back({std::string(name), reason});
  }
}

}  // namespace

request read_request(const oci_config& config, const settings& chosen) {
  request out;
  out.capabilities = variable(config, capabilities_variable);
  if (out.capabilities && listed(*out.capabilities).empty()) {
    out.capabilities.reset();
  }
  read_annotations(config, chosen, out);
  if (out.devices.empty()) {
    read_mounts(config, chosen, out);
  }
  if (out.devices.empty()) {
    read_variable(config, chosen, out);
  }
  return out;
}

}  // namespace gpushm::oci_runtime
