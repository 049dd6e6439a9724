// SPDX-License-Identifier: Apache-2.0
// Rejects paths that could lead elsewhere. The specification defines paths "on the host" and
// "within the container": both have a root, so a relative path is meaningless; runtimes would
// resolve it against the bundle or their working directory.
#include "containers/cdi/inject/parts.hpp"

namespace gpushm::cdi {

namespace {

void check(const std::string& device, std::string_view subject, std::string_view path) {
  std::string_view problem;
  bool leads_up = false;
  for_each_part(path, [&](std::string_view part) { leads_up = leads_up || part == ".."; });
  if (path.find('\0') != std::string_view::npos) {
    problem = "contains a NUL byte";
  } else if (!path.starts_with('/')) {
    problem = "is not absolute";
  } else if (leads_up) {
    problem = "contains \"..\"";
  } else {
    return;
  }
  std::string cause = "its ";
  cause += subject;
  cause += " \"";
  cause += path.substr(0, path.find('\0'));
  cause += "\" ";
  cause += problem;
  throw error(
      errc::invalid_argument, "inject", device, cause, "fix the CDI document that defines it");
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
    // The source of other file systems is a name: "tmpfs".
    if (is_bind(each)) {
      check(device, "mount of", each.host_path);
    }
  }
  for (const hook& each : changes.hooks) {
    check(device, "hook", each.path);
  }
}

}  // namespace gpushm::cdi
