// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <map>
#include <utility>

#include "containers/cdi/document/parse.hpp"
#include "containers/cdi/registry/registry.hpp"
#include "inspect/facts/gather_parts.hpp"

namespace gpushm::inspect {

namespace {

/// Device nodes and mounts that do not exist on this machine: usually the document is older than
/// the driver. Empty if all exist.
std::string stale_part(system& machine, const cdi::edits& edits) {
  const auto missing = [&machine](const std::string& path) {
    return machine.status(path) ? std::string()
                                : fmt::format("it names {}, which does not exist", path);
  };
  for (const cdi::device_node& node : edits.device_nodes) {
    std::string text = missing(node.host_path.empty() ? node.path : node.host_path);
    if (!text.empty()) {
      return text;
    }
  }
  for (const cdi::mount& mount : edits.mounts) {
    // "tmpfs" and similar are mounted by type, not from a path.
    std::string text = mount.host_path.starts_with("/") ? missing(mount.host_path) : std::string();
    if (!text.empty()) {
      return text;
    }
  }
  return {};
}

/// The first problem, with its line if it has one.
std::string first_problem(const std::vector<yaml::problem>& problems) {
  const yaml::problem& first = problems.front();
  return fmt::format("{}{}{}",
                     first.line > 0 ? fmt::format("line {}: ", first.line) : "",
                     first.text,
                     problems.size() > 1 ? fmt::format(" (and {} more)", problems.size() - 1) : "");
}

void judge(system& machine, const cdi::parsed& read, cdi_facts& facts) {
  facts.version = read.content.version;
  facts.kind = read.content.kind;
  for (const cdi::device& device : read.content.devices) {
    facts.devices.push_back(device.name);
  }
  if (!read.problems.empty()) {
    facts.problem = first_problem(read.problems);
    return;
  }
  facts.problem = stale_part(machine, read.content.changes);
  for (const cdi::device& device : read.content.devices) {
    if (facts.problem.empty()) {
      facts.problem = stale_part(machine, device.changes);
    }
  }
}

/// Engines use neither of two documents of one directory for a device that both define. `first_new`
/// is the index of the directory's first document.
void judge_conflicts(std::vector<cdi_facts>& documents, std::size_t first_new) {
  std::map<std::string, std::size_t> seen;
  const auto set_conflict = [&documents](
                                std::size_t index, const std::string& name, std::size_t other) {
    if (documents[index].problem.empty()) {
      documents[index].problem =
          fmt::format("{} is also in {}, and engines use neither", name, documents[other].path);
    }
  };
  std::vector<bool> valid;
  valid.reserve(documents.size());
  for (const cdi_facts& each : documents) {
    valid.push_back(each.problem.empty());
  }
  for (std::size_t at = first_new; at < documents.size(); ++at) {
    for (std::size_t device = 0; valid[at] && device < documents[at].devices.size(); ++device) {
      const std::string name =
          fmt::format("{}={}", documents[at].kind, documents[at].devices[device]);
      const auto [first, fresh] = seen.emplace(name, at);
      if (!fresh) {
        set_conflict(at, name, first->second);
        set_conflict(first->second, name, at);
      }
    }
  }
}

}  // namespace

std::vector<cdi_facts> gather_cdi(system& machine) {
  std::vector<cdi_facts> documents;
  for (const std::string& directory : cdi::default_directories()) {
    const std::size_t first = documents.size();
    for (const std::string& name : machine.list(directory)) {
      if (!name.ends_with(".json") && !name.ends_with(".yaml")) {
        continue;
      }
      cdi_facts facts;
      facts.path = fmt::format("{}/{}", directory, name);
      if (const auto text = machine.read(facts.path)) {
        judge(machine, cdi::parse(*text, facts.path), facts);
      } else {
        facts.problem = "it cannot be read";
      }
      documents.push_back(std::move(facts));
    }
    judge_conflicts(documents, first);
  }
  return documents;
}

}  // namespace gpushm::inspect
