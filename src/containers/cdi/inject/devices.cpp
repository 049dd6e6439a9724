// SPDX-License-Identifier: Apache-2.0
// Device nodes, their cgroup rules, and network devices.
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "base/files/syscall.hpp"
#include "base/text/quoted.hpp"
#include "containers/cdi/inject/parts.hpp"

namespace gpushm::cdi {

namespace {

constexpr const char* fifo = "p";

std::string_view type_of(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFBLK:
      return "b";
    case S_IFCHR:
      return "c";
    case S_IFIFO:
      return fifo;
    default:
      return {};
  }
}

[[noreturn]] void refuse(errc code,
                         const std::string& device,
                         std::string_view host_path,
                         std::string_view cause,
                         std::string_view next) {
  std::string text = "its node ";
  text += base::in_quotes(host_path);
  text += cause;
  throw error(code, "inject", device, text, next);
}

// The node gets the owner of the process, unless the document sets one.
void add_owner(oci_config& node,
               const char* key,
               const std::optional<std::uint32_t>& given,
               const oci_config* user) {
  if (given) {
    node[key] = *given;
    return;
  }
  if (user == nullptr) {
    return;
  }
  const auto own = user->find(key);
  if (own == user->end() || own->is_null()) {
    return;
  }
  if (!own->is_number_integer()) {
    std::string cause = "its member \"process.user.";
    cause += key;
    cause += "\" is not an integer";
    throw error(errc::invalid_argument, "edit config", {}, cause);
  }
  if (*own > 0) {
    node[key] = *own;
  }
}

oci_config to_oci(const device_node& complete, const oci_config* user) {
  oci_config node{{"path", complete.path},
                  {"type", complete.type},
                  {"major", complete.major},
                  {"minor", complete.minor}};
  if (complete.file_mode) {
    node["fileMode"] = *complete.file_mode;
  }
  add_owner(node, "uid", complete.uid, user);
  add_owner(node, "gid", complete.gid, user);
  return node;
}

// Removes the first node with that path. If there is a second one (no engine writes that), the new
// node replaces it, as in the reference.
void place(oci_config& nodes, oci_config node) {
  const auto same = [&](const oci_config& each) {
    return text_at(each, "path", "linux.devices") == node["path"].get_ref<const std::string&>();
  };
  if (const auto old = std::find_if(nodes.begin(), nodes.end(), same); old != nodes.end()) {
    nodes.erase(old);
  }
  const auto second = std::find_if(nodes.begin(), nodes.end(), same);
  if (second != nodes.end()) {
    *second = std::move(node);
  } else {
    nodes.push_back(std::move(node));
  }
}

std::string described(const device_node& complete, const oci_config& rule) {
  std::string text = "device ";
  text += complete.path;
  text += " (";
  text += complete.type;
  if (complete.type != fifo) {
    text += ' ';
    text += std::to_string(complete.major);
    text += ':';
    text += std::to_string(complete.minor);
  }
  if (rule.is_object()) {
    text += ' ';
    text += rule.contains("access") ? rule["access"].get_ref<const std::string&>() : "none";
  }
  text += ")";
  return text;
}

}  // namespace

device_node completed(const device_node& node, const std::string& device) {
  device_node complete = node;
  const std::string& host_path = node.host_path.empty() ? node.path : node.host_path;
  const bool minimal = !node.type.empty() && (node.major != 0 || node.type == fifo);
  struct stat status {};
  const bool exists = base::retry([&] { return ::lstat(host_path.c_str(), &status); }) == 0;
  const int number = errno;
  const std::string_view type = exists ? type_of(status.st_mode) : std::string_view();
  if (type.empty()) {
    // A document may fully describe a node that is created later.
    if (minimal) {
      return complete;
    }
    if (exists) {
      refuse(errc::invalid_argument, device, host_path, " is not a device node", {});
    }
    std::string cause = " cannot be accessed: ";
    cause += base::errno_text(number);
    refuse(base::errc_of_errno(number),
           device,
           host_path,
           cause,
           number == ENOENT
               ? "check that the driver is loaded, then generate the CDI document again"
               : "");
  }
  if (!complete.file_mode) {
    complete.file_mode = status.st_mode & ~static_cast<mode_t>(S_IFMT);
  }
  if (minimal) {
    return complete;
  }
  if (complete.type.empty()) {
    complete.type = type;
  }
  if (complete.type != type) {
    std::string cause = " is of type ";
    cause += base::in_quotes(type);
    cause += ", but the document has ";
    cause += base::in_quotes(complete.type);
    refuse(errc::invalid_argument, device, host_path, cause, {});
  }
  if (complete.type != fifo && complete.major == 0) {
    complete.major = major(status.st_rdev);
    complete.minor = minor(status.st_rdev);
  }
  return complete;
}

oci_config cgroup_rule(const device_node& complete) {
  if (complete.type != "b" && complete.type != "c") {
    return nullptr;
  }
  oci_config rule{{"allow", true},
                  {"type", complete.type},
                  {"major", complete.major},
                  {"minor", complete.minor}};
  if (complete.permissions != "none") {
    rule["access"] = complete.permissions.empty() ? "rwm" : complete.permissions;
  }
  return rule;
}

void apply_device_nodes(const edits& changes, const editing& editing) {
  const oci_config* user = find_object(editing.config, "process.user");
  for (const device_node& each : changes.device_nodes) {
    const device_node complete = completed(each, editing.device);
    const oci_config rule = cgroup_rule(complete);
    oci_config node = to_oci(complete, user);
    place(array_at(editing.config, "linux.devices"), std::move(node));
    if (rule.is_object()) {
      array_at(editing.config, "linux.resources.devices").push_back(rule);
    }
    // Members may have moved when "linux" was created.
    user = find_object(editing.config, "process.user");
    editing.note(described(complete, rule));
  }
}

void apply_net_devices(const edits& changes, const editing& editing) {
  for (const net_device& each : changes.net_devices) {
    object_at(editing.config, "linux.netDevices")[each.host_interface_name] =
        oci_config{{"name", each.name}};
    std::string text = "network device ";
    text += each.host_interface_name;
    text += " as ";
    text += each.name;
    editing.note(std::move(text));
  }
}

}  // namespace gpushm::cdi
