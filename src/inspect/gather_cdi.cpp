// SPDX-License-Identifier: Apache-2.0
#include <yaml-cpp/yaml.h>

#include <set>

#include "inspect/gather_parts.hpp"

namespace gpushm::inspect {

namespace {

// Versions of the specification that its reference implementation accepts.
const std::set<std::string> known_versions{
    "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"};

std::string text_of(const YAML::Node& node) {
  return node && node.IsScalar() ? node.Scalar() : std::string();
}

/// Device nodes and mounts that are not on this machine: the usual sign that the document is older
/// than the driver. Empty when all is there.
std::string stale_part(system& machine, const YAML::Node& edits) {
  if (!edits || !edits.IsMap()) {
    return {};
  }
  for (const auto& node : edits["deviceNodes"]) {
    const std::string on_host = text_of(node["hostPath"]);
    const std::string path = on_host.empty() ? text_of(node["path"]) : on_host;
    if (!path.empty() && !machine.status(path)) {
      return "it names " + path + ", which is not here";
    }
  }
  for (const auto& mount : edits["mounts"]) {
    const std::string path = text_of(mount["hostPath"]);
    if (!path.empty() && !machine.status(path)) {
      return "it names " + path + ", which is not here";
    }
  }
  return {};
}

void judge(system& machine, const YAML::Node& document, cdi_facts& found) {
  if (!document.IsMap()) {
    found.problem = "it is not a mapping";
    return;
  }
  found.version = text_of(document["cdiVersion"]);
  found.kind = text_of(document["kind"]);
  if (known_versions.count(found.version) == 0) {
    found.problem = found.version.empty() ? "it has no cdiVersion"
                                          : "nobody knows its cdiVersion " + found.version;
    return;
  }
  const std::size_t slash = found.kind.find('/');
  if (slash == std::string::npos || slash == 0 || slash + 1 == found.kind.size()) {
    found.problem = "its kind is not \"vendor/class\"";
    return;
  }
  const YAML::Node devices = document["devices"];
  if (!devices || !devices.IsSequence() || devices.size() == 0) {
    found.problem = "it has no devices";
    return;
  }
  found.problem = stale_part(machine, document["containerEdits"]);
  for (const auto& device : devices) {
    const std::string name = device.IsMap() ? text_of(device["name"]) : std::string();
    if (name.empty()) {
      found.problem = "one of its devices has no name";
      return;
    }
    found.devices.push_back(name);
    if (found.problem.empty()) {
      found.problem = stale_part(machine, device["containerEdits"]);
    }
  }
}

}  // namespace

std::vector<cdi_facts> gather_cdi(system& machine) {
  std::vector<cdi_facts> all;
  for (const std::string& directory : {std::string("/etc/cdi"), std::string("/var/run/cdi")}) {
    for (const std::string& name : machine.list(directory)) {
      if (!name.ends_with(".json") && !name.ends_with(".yaml")) {
        continue;
      }
      cdi_facts found;
      found.path = directory;
      found.path.append("/").append(name);
      const auto text = machine.read(found.path);
      if (!text) {
        found.problem = "it cannot be read";
      } else {
        try {
          judge(machine, YAML::Load(*text), found);
        } catch (const YAML::Exception& failure) {
          found.problem = std::string("it is malformed: ") + failure.what();
        }
      }
      all.push_back(std::move(found));
    }
  }
  return all;
}

}  // namespace gpushm::inspect
