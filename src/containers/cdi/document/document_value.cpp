// SPDX-License-Identifier: Apache-2.0
#include "containers/cdi/document/document_value.hpp"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gpushm::cdi {

namespace {

using value = nlohmann::ordered_json;

void put(value& value, const char* name, const std::string& text) {
  if (!text.empty()) {
    value[name] = text;
  }
}

template <typename Number>
void put(value& value, const char* name, const std::optional<Number>& number) {
  if (number) {
    value[name] = *number;
  }
}

template <typename Element>
void put(value& value, const char* name, const std::vector<Element>& list) {
  if (!list.empty()) {
    value[name] = list;
  }
}

void put_flag(value& value, const char* name, bool flag) {
  if (flag) {
    value[name] = true;
  }
}

value to_value(const device_node& node) {
  value out = value::object();
  out["path"] = node.path;
  put(out, "hostPath", node.host_path);
  put(out, "type", node.type);
  if (node.major != 0) {
    out["major"] = node.major;
  }
  if (node.minor != 0) {
    out["minor"] = node.minor;
  }
  put(out, "fileMode", node.file_mode);
  put(out, "permissions", node.permissions);
  put(out, "uid", node.uid);
  put(out, "gid", node.gid);
  return out;
}

value to_value(const net_device& device) {
  value out = value::object();
  out["hostInterfaceName"] = device.host_interface_name;
  out["name"] = device.name;
  return out;
}

value to_value(const hook& hook) {
  value out = value::object();
  out["hookName"] = hook.name;
  out["path"] = hook.path;
  put(out, "args", hook.args);
  put(out, "env", hook.env);
  put(out, "timeout", hook.timeout_s);
  return out;
}

value to_value(const mount& mount) {
  value out = value::object();
  out["hostPath"] = mount.host_path;
  out["containerPath"] = mount.container_path;
  put(out, "options", mount.options);
  put(out, "type", mount.type);
  return out;
}

value to_value(const intel_rdt& rdt) {
  value out = value::object();
  put(out, "closID", rdt.clos_id);
  put(out, "l3CacheSchema", rdt.l3_cache_schema);
  put(out, "memBwSchema", rdt.mem_bw_schema);
  // An empty list differs from a missing one: it requires the version that has the field.
  put(out, "schemata", rdt.schemata);
  put_flag(out, "enableMonitoring", rdt.enable_monitoring);
  put_flag(out, "enableCMT", rdt.enable_cmt);
  put_flag(out, "enableMBM", rdt.enable_mbm);
  return out;
}

template <typename Part>
void put_parts(value& value, const char* name, const std::vector<Part>& parts) {
  for (const Part& each : parts) {
    value[name].push_back(to_value(each));
  }
}

value to_value(const edits& changes) {
  value out = value::object();
  put(out, "env", changes.env);
  put_parts(out, "deviceNodes", changes.device_nodes);
  put_parts(out, "netDevices", changes.net_devices);
  put_parts(out, "hooks", changes.hooks);
  put_parts(out, "mounts", changes.mounts);
  if (changes.rdt) {
    out["intelRdt"] = to_value(*changes.rdt);
  }
  put(out, "additionalGids", changes.additional_gids);
  return out;
}

void put_notes(value& value, const annotations& notes) {
  for (const auto& [key, text] : notes) {
    value["annotations"][key] = text;
  }
}

}  // namespace

nlohmann::ordered_json to_value(const document& content) {
  value out = value::object();
  out["cdiVersion"] = content.version;
  out["kind"] = content.kind;
  put_notes(out, content.notes);
  out["devices"] = value::array();
  for (const device& each : content.devices) {
    value one = value::object();
    one["name"] = each.name;
    put_notes(one, each.notes);
    one["containerEdits"] = to_value(each.changes);
    out["devices"].push_back(std::move(one));
  }
  if (!content.changes.empty()) {
    out["containerEdits"] = to_value(content.changes);
  }
  return out;
}

}  // namespace gpushm::cdi
