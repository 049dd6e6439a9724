// SPDX-License-Identifier: Apache-2.0
#include "containers/cdi/inject/inject.hpp"

#include <algorithm>

#include "containers/cdi/inject/parts.hpp"

namespace gpushm::cdi {

namespace {

bool has_grant(const std::vector<grant>& grants, const std::string& device) {
  return std::any_of(
      grants.begin(), grants.end(), [&](const grant& each) { return each.device == device; });
}

}  // namespace

void apply(const edits& changes,
           oci_config& config,
           const std::string& device,
           std::vector<applied_edit>& done) {
  check_paths(changes, device);
  const editing to{config, device, done};
  apply_environment(changes, to);
  apply_device_nodes(changes, to);
  apply_net_devices(changes, to);
  apply_mounts(changes, to);
  apply_hooks(changes, to);
  apply_rdt(changes, to);
  apply_groups(changes, to);
}

std::vector<applied_edit> apply_all(const std::vector<grant>& grants, oci_config& config) {
  std::vector<applied_edit> done;
  oci_config edited = config;
  for (const grant& each : grants) {
    apply(each.changes, edited, each.device, done);
  }
  config = std::move(edited);
  return done;
}

std::vector<grant> resolve(const registry& registry, const std::vector<std::string>& names) {
  std::vector<grant> grants;
  std::vector<const document*> seen;
  std::string missing;
  std::string reasons;
  for (const std::string& name : names) {
    const registered_device device = registry.find(name);
    if (device.found == nullptr) {
      missing += missing.empty() ? "" : ", ";
      missing += name;
      reasons += reasons.empty() ? "" : "; ";
      reasons += registry.why_not(name);
      continue;
    }
    if (has_grant(grants, name)) {
      continue;
    }
    const document& content = device.from->content;
    if (std::find(seen.begin(), seen.end(), &content) == seen.end()) {
      seen.push_back(&content);
      grants.push_back({content.kind, content.changes});
    }
    grants.push_back({name, device.found->changes});
  }
  if (!missing.empty()) {
    throw error(errc::device_not_found,
                "inject",
                missing,
                reasons,
                "run \"gpushm cdi list\" to list the devices");
  }
  return grants;
}

std::vector<applied_edit> inject(const registry& registry,
                                 const std::vector<std::string>& names,
                                 oci_config& config) {
  return apply_all(resolve(registry, names), config);
}

}  // namespace gpushm::cdi
