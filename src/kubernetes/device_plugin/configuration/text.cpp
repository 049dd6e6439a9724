// SPDX-License-Identifier: Apache-2.0
#include "base/text/quoted.hpp"
#include "kubernetes/device_plugin/configuration/configuration.hpp"

namespace gpushm::device_plugin {

namespace {

void append_devices(std::string& out, const device_selection& devices) {
  if (devices.count > 0) {
    out.append("      devices: ").append(std::to_string(devices.count)).append("\n");
  } else if (!devices.names.empty()) {
    out.append("      devices: [");
    for (std::size_t i = 0; i < devices.names.size(); ++i) {
      out.append(i == 0 ? "" : ", ");
      base::append_quoted(out, devices.names[i]);
    }
    out.append("]\n");
  }
}

}  // namespace

std::string canonical_time_slicing(const time_slicing& content) {
  std::string out = "version: v1\nsharing:\n  timeSlicing:\n";
  if (content.rename_by_default) {
    out.append("    renameByDefault: true\n");
  }
  if (content.fail_requests_greater_than_one) {
    out.append("    failRequestsGreaterThanOne: true\n");
  }
  out.append("    resources:\n");
  for (const replicated_resource& each : content.resources) {
    out.append("    - name: ").append(each.name).append("\n");
    const bool by_default = content.rename_by_default && each.rename == each.name + ".shared";
    if (!each.rename.empty() && !by_default) {
      out.append("      rename: ").append(each.rename).append("\n");
    }
    append_devices(out, each.devices);
    out.append("      replicas: ").append(std::to_string(each.replicas)).append("\n");
  }
  return out;
}

}  // namespace gpushm::device_plugin
