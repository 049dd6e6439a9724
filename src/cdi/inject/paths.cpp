// SPDX-License-Identifier: Apache-2.0
// Paths of a document that could lead elsewhere than they say. The specification speaks of paths
// "on the host" and "within the container": both have a root, so that a relative one has no meaning
// there; runtimes would take it from the bundle, or from whatever directory they run in.
#include "cdi/inject/parts.hpp"

namespace gpushm::cdi {

namespace {

void check(const std::string& device, std::string_view what, std::string_view path) {
  std::string_view problem;
  bool leads_up = false;
  for_each_part(path, [&](std::string_view part) { leads_up = leads_up || part == ".."; });
  if (path.find('\0') != std::string_view::npos) {
    problem = "has a zero byte in it";
  } else if (!path.starts_with('/')) {
    problem = "is not absolute";
  } else if (leads_up) {
    problem = "leads up (\"..\")";
  } else {
    return;
  }
  std::string cause = "its ";
  cause += what;
  cause += " \"";
  cause += path.substr(0, path.find('\0'));
  cause += "\" ";
  cause += problem;
  throw error(
      errc::invalid_argument, "inject", device, cause, "mend the CDI document that defines it");
}

}  // namespace

void check_paths(const edits& changes, const std::string& device) {
  for (const device_node& each : changes.device_nodes) {
    check(device, "node", each.path);
    if (!each.host_path.empty()) {
      check(device, "node's host path", each.host_path);
    }
  }
  for (const mount& each : changes.mounts) {
    check(device, "mount at", each.container_path);
    // Of other file systems the source is a name: "tmpfs".
    if (is_bind(each)) {
      check(device, "mount of", each.host_path);
    }
  }
  for (const hook& each : changes.hooks) {
    check(device, "hook", each.path);
  }
}

}  // namespace gpushm::cdi
