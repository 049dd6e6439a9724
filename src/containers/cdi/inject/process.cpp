// SPDX-License-Identifier: Apache-2.0
// Edits of the container's process: environment variables, groups, hooks and resctrl.
#include <algorithm>
#include <unordered_map>

#include "containers/cdi/inject/parts.hpp"

namespace gpushm::cdi {

namespace {

std::string_view variable_name(std::string_view line) {
  return line.substr(0, line.find('='));
}

oci_config with(oci_config object, const char* key, const std::vector<std::string>& list) {
  if (!list.empty()) {
    object[key] = list;
  }
  return object;
}

}  // namespace

void apply_environment(const edits& changes, const editing& editing) {
  if (changes.env.empty()) {
    return;
  }
  oci_config& lines = array_at(editing.config, "process.env");
  // The last of duplicate names applies, as in programs.
  std::unordered_map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    places.insert_or_assign(std::string(variable_name(lines[i])), i);
  }
  for (const std::string& line : changes.env) {
    const auto [place, added] =
        places.try_emplace(std::string(variable_name(std::string_view(line))), lines.size());
    if (added) {
      lines.push_back(line);
    } else {
      lines[place->second] = line;
    }
    std::string text = "env ";
    text += line;
    text += added ? "" : " (replaces another)";
    editing.note(std::move(text));
  }
}

void apply_groups(const edits& changes, const editing& editing) {
  for (const std::uint32_t gid : changes.additional_gids) {
    // Never add group 0: the process already has it, or must not get it.
    if (gid == 0) {
      continue;
    }
    oci_config& groups = array_at(editing.config, "process.user.additionalGids");
    if (std::find(groups.begin(), groups.end(), oci_config(gid)) == groups.end()) {
      groups.push_back(gid);
      editing.note("group " + std::to_string(gid));
    }
  }
}

oci_config to_oci(const hook& hook) {
  oci_config created = with(with({{"path", hook.path}}, "args", hook.args), "env", hook.env);
  if (hook.timeout_s) {
    created["timeout"] = *hook.timeout_s;
  }
  return created;
}

void apply_hooks(const edits& changes, const editing& editing) {
  constexpr auto kinds = std::to_array<std::string_view>(
      {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"});
  for (const hook& each : changes.hooks) {
    if (std::find(kinds.begin(), kinds.end(), each.name) == kinds.end()) {
      std::string cause = "unknown hook \"";
      cause += each.name;
      cause += '"';
      editing.refuse(errc::invalid_argument, cause);
    }
    std::string path = "hooks.";
    path += each.name;
    array_at(editing.config, path).push_back(to_oci(each));
    std::string text = "hook ";
    text += each.name;
    text += ": ";
    text += each.path;
    // The first argument repeats the program's name.
    for (std::size_t i = 1; i < each.args.size(); ++i) {
      text += ' ';
      text += each.args[i];
    }
    editing.note(std::move(text));
  }
}

oci_config to_oci(const intel_rdt& rdt) {
  oci_config created = oci_config::object();
  const auto set = [&](const char* key, const std::string& value) {
    if (!value.empty()) {
      created[key] = value;
    }
  };
  set("closID", rdt.clos_id);
  if (rdt.schemata) {
    created = with(std::move(created), "schemata", *rdt.schemata);
  }
  set("l3CacheSchema", rdt.l3_cache_schema);
  set("memBwSchema", rdt.mem_bw_schema);
  if (rdt.enable_monitoring) {
    created["enableMonitoring"] = true;
  }
  return created;
}

void apply_rdt(const edits& changes, const editing& editing) {
  if (!changes.rdt) {
    return;
  }
  object_at(editing.config, "linux")["intelRdt"] = to_oci(*changes.rdt);
  std::string text = "resctrl class ";
  text += changes.rdt->clos_id.empty() ? "of the container" : changes.rdt->clos_id;
  editing.note(std::move(text));
}

}  // namespace gpushm::cdi
