// SPDX-License-Identifier: Apache-2.0
#include "containers/cdi/document/parse_edits.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>

#include "base/text/quoted.hpp"
#include "containers/cdi/document/versions.hpp"

namespace gpushm::cdi {

namespace {

using names = std::string_view;

/// Reports an empty or missing string, at its own position or that of the object.
void require(const parse_context& context,
             bool readable,
             const std::string& value,
             const yaml::node& where,
             const char* rule,
             std::string_view field) {
  if (readable && value.empty()) {
    context.in.report(where, rule, std::string(field).append(" must not be empty or missing"));
  }
}

void check_env(const parse_context& context,
               const yaml::node& list,
               const std::vector<std::string>& env) {
  const auto& elements = yaml::followed(list).children;
  if (elements.size() != env.size()) {
    return;  // a problem was already reported
  }
  for (std::size_t at = 0; at < env.size() && !context.in.full(); ++at) {
    const std::size_t equals = env[at].find('=');
    if (equals == 0 || equals == std::string::npos) {
      context.in.report(
          *elements[at],
          "env",
          "an environment variable must be \"NAME=value\", not " + base::in_quotes(env[at]));
    }
  }
}

void read_env(const parse_context& context,
              const yaml::node& node,
              std::string_view field,
              std::vector<std::string>& out) {
  context.in.read(node, field, out);
  check_env(context, node, out);
}

void read_one(const parse_context& context, const yaml::node& node, device_node& out) {
  constexpr std::array<names, 9> known{
      "path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"};
  bool path = true;
  const yaml::node* path_at = &node;
  for (const auto& each : context.in.fields(node, "a device node", known)) {
    const yaml::node& value = *each.value;
    switch (each.index) {
      case 0:
        path = context.in.read(value, "path", out.path);
        path_at = &value;
        break;
      case 1:
        if (context.in.read(value, "hostPath", out.host_path) && !out.host_path.empty()) {
          context.since(*each.key, "0.5.0", "hostPath");
        }
        break;
      case 2:
        if (context.in.read(value, "type", out.type) && !out.type.empty() && out.type != "b" &&
            out.type != "c" && out.type != "u" && out.type != "p") {
          context.in.report(
              value, "device-node", "type must be b, c, u or p, not " + base::in_quotes(out.type));
        }
        break;
      case 3:
        context.in.read(value, "major", out.major);
        break;
      case 4:
        context.in.read(value, "minor", out.minor);
        break;
      case 5:
        context.in.read(value, "fileMode", out.file_mode);
        break;
      case 6:
        if (context.in.read(value, "permissions", out.permissions) && out.permissions != "none" &&
            out.permissions.find_first_not_of("rwm") != std::string::npos) {
          context.in.report(
              value,
              "device-node",
              "permissions must consist of the letters r, w and m, or be \"none\", not " +
                  base::in_quotes(out.permissions));
        } else if (out.permissions == "none") {
          context.warnings.report(value,
                                  "newer-engine",
                                  "engines with the CDI library 1.1.0 or older refuse the whole "
                                  "document because of permissions \"none\"; omit the node's "
                                  "permissions unless every engine is newer");
        }
        break;
      case 7:
        context.in.read(value, "uid", out.uid);
        break;
      default:
        context.in.read(value, "gid", out.gid);
    }
  }
  require(context, path, out.path, *path_at, "device-node", "path of a device node");
}

void read_one(const parse_context& context, const yaml::node& node, net_device& out) {
  constexpr std::array<names, 2> known{"hostInterfaceName", "name"};
  std::array<bool, 2> readable{true, true};
  std::array<const yaml::node*, 2> at{&node, &node};
  for (const auto& each : context.in.fields(node, "a network device", known)) {
    std::string& text = each.index == 0 ? out.host_interface_name : out.name;
    readable.at(each.index) = context.in.read(*each.value, known.at(each.index), text);
    at.at(each.index) = each.value;
  }
  require(context,
          readable[0],
          out.host_interface_name,
          *at[0],
          "net-device",
          "hostInterfaceName of a network device");
  require(context, readable[1], out.name, *at[1], "net-device", "name of a network device");
}

void read_one(const parse_context& context, const yaml::node& node, hook& out) {
  constexpr std::array<names, 5> known{"hookName", "path", "args", "env", "timeout"};
  constexpr std::array<names, 6> hooks{
      "prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"};
  std::array<bool, 2> readable{true, true};
  std::array<const yaml::node*, 2> at{&node, &node};
  for (const auto& each : context.in.fields(node, "a hook", known)) {
    const yaml::node& value = *each.value;
    switch (each.index) {
      case 0:
      case 1:
        readable.at(each.index) =
            context.in.read(value, known.at(each.index), each.index == 0 ? out.name : out.path);
        at.at(each.index) = &value;
        break;
      case 2:
        context.in.read(value, "args", out.args);
        break;
      case 3:
        read_env(context, value, "env", out.env);
        break;
      default:
        context.in.read(value, "timeout", out.timeout_s);
    }
  }
  require(context, readable[0], out.name, *at[0], "hook", "hookName of a hook");
  if (!out.name.empty() && std::find(hooks.begin(), hooks.end(), out.name) == hooks.end()) {
    context.in.report(*at[0],
                      "hook",
                      "hookName must be prestart, createRuntime, createContainer, startContainer, "
                      "poststart or poststop, not " +
                          base::in_quotes(out.name));
  }
  require(context, readable[1], out.path, *at[1], "hook", "path of a hook");
}

void read_one(const parse_context& context, const yaml::node& node, mount& out) {
  constexpr std::array<names, 4> known{"hostPath", "containerPath", "options", "type"};
  std::array<bool, 2> readable{true, true};
  std::array<const yaml::node*, 2> at{&node, &node};
  for (const auto& each : context.in.fields(node, "a mount", known)) {
    const yaml::node& value = *each.value;
    switch (each.index) {
      case 0:
      case 1:
        readable.at(each.index) = context.in.read(
            value, known.at(each.index), each.index == 0 ? out.host_path : out.container_path);
        at.at(each.index) = &value;
        break;
      case 2:
        context.in.read(value, "options", out.options);
        break;
      default:
        if (context.in.read(value, "type", out.type) && !out.type.empty()) {
          context.since(*each.key, "0.4.0", "type of a mount");
        }
    }
  }
  require(context, readable[0], out.host_path, *at[0], "mount", "hostPath of a mount");
  require(context, readable[1], out.container_path, *at[1], "mount", "containerPath of a mount");
}

template <typename Part>
void read_list(const parse_context& context,
               const yaml::node& node,
               std::string_view field,
               std::vector<Part>& out) {
  for (const yaml::node* each : context.in.elements(node, field)) {
    if (context.in.is_null(*each)) {
      context.in.report(*each,
                        "null-entry",
                        std::string(field).append(" must not have an empty entry; remove it"));
    } else if (context.in.entries_expected(*each, std::string("an entry of ").append(field))) {
      read_one(context, *each, out.emplace_back());
    }
  }
}

void read_net_devices(const parse_context& context, const yaml::node& node, edits& out) {
  read_list(context, node, "netDevices", out.net_devices);
  const auto& elements = yaml::followed(node).children;
  if (out.net_devices.size() != elements.size()) {
    return;
  }
  std::set<std::string_view> on_host;
  std::set<std::string_view> inside;
  for (std::size_t at = 0; at < elements.size(); ++at) {
    const net_device& one = out.net_devices[at];
    if (!one.host_interface_name.empty() && !on_host.insert(one.host_interface_name).second) {
      context.in.report(*elements[at],
                        "net-device",
                        fmt::format("two network devices have the hostInterfaceName {}; remove one",
                                    base::in_quotes(one.host_interface_name)));
    }
    if (!one.name.empty() && !inside.insert(one.name).second) {
      context.in.report(*elements[at],
                        "net-device",
                        fmt::format("two network devices have the name {}; rename one",
                                    base::in_quotes(one.name)));
    }
  }
}

/// It becomes a directory name; "/" is the root.
bool is_clos_id(const std::string& id) {
  return id == "/" || (id.size() < 4096 && id != "." && id != ".." &&
                       id.find_first_of("/\n") == std::string::npos);
}

/// Separate fields before 1.1.0.
void read_old_monitoring(const parse_context& context,
                         const yaml::reader::field& field,
                         std::string_view key,
                         bool& out) {
  context.in.read(*field.value, key, out);
  if (context.version && *context.version >= *version_index("1.1.0")) {
    context.in.report(*field.key,
                      "removed-field",
                      std::string(key).append(" was removed in cdiVersion 1.1.0; "
                                              "use enableMonitoring instead"));
  }
}

void read_rdt(const parse_context& context, const yaml::node& node, intel_rdt& out) {
  constexpr std::array<names, 7> known{"closID",
                                       "l3CacheSchema",
                                       "memBwSchema",
                                       "schemata",
                                       "enableMonitoring",
                                       "enableCMT",
                                       "enableMBM"};
  for (const auto& each : context.in.fields(node, "intelRdt", known)) {
    const yaml::node& value = *each.value;
    switch (each.index) {
      case 0:
        if (context.in.read(value, "closID", out.clos_id) && !is_clos_id(out.clos_id)) {
          context.in.report(value,
                            "intel-rdt",
                            "closID must be a file name of less than 4096 bytes, or \"/\", not " +
                                base::in_quotes(out.clos_id));
        }
        break;
      case 1:
        context.in.read(value, "l3CacheSchema", out.l3_cache_schema);
        break;
      case 2:
        context.in.read(value, "memBwSchema", out.mem_bw_schema);
        break;
      case 3:
        context.in.read(value, "schemata", out.schemata);
        if (out.schemata) {
          context.since(*each.key, "1.1.0", "schemata");
        }
        break;
      case 4:
        context.in.read(value, "enableMonitoring", out.enable_monitoring);
        if (out.enable_monitoring) {
          context.since(*each.key, "1.1.0", "enableMonitoring");
        }
        break;
      case 5:
        read_old_monitoring(context, each, "enableCMT", out.enable_cmt);
        break;
      default:
        read_old_monitoring(context, each, "enableMBM", out.enable_mbm);
    }
  }
}

}  // namespace

void parse_context::since(const yaml::node& where,
                          std::string_view needed,
                          std::string_view field) const {
  if (version && *version < *version_index(needed)) {
    in.report(
        where,
        "version-too-low",
        fmt::format(
            "{} needs cdiVersion {}, but the document has {}; raise the version or remove this",
            field,
            needed,
            known_versions.at(*version)));
  }
}

void read_edits(const parse_context& context, const yaml::node& node, edits& out) {
  constexpr std::array<names, 7> known{
      "env", "deviceNodes", "netDevices", "hooks", "mounts", "intelRdt", "additionalGids"};
  for (const auto& each : context.in.fields(node, "containerEdits", known)) {
    const yaml::node& value = *each.value;
    switch (each.index) {
      case 0:
        read_env(context, value, "env", out.env);
        break;
      case 1:
        read_list(context, value, "deviceNodes", out.device_nodes);
        break;
      case 2:
        read_net_devices(context, value, out);
        if (!out.net_devices.empty()) {
          context.since(*each.key, "1.1.0", "netDevices");
        }
        break;
      case 3:
        read_list(context, value, "hooks", out.hooks);
        break;
      case 4:
        read_list(context, value, "mounts", out.mounts);
        break;
      case 5:
        if (!context.in.is_null(value)) {
          context.since(*each.key, "0.7.0", "intelRdt");
          read_rdt(context, value, out.rdt.emplace());
        }
        break;
      default:
        context.in.read(value, "additionalGids", out.additional_gids);
        if (!out.additional_gids.empty()) {
          context.since(*each.key, "0.7.0", "additionalGids");
        }
    }
  }
}

}  // namespace gpushm::cdi
