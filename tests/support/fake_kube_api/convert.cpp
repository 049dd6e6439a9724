// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_kube_api/convert.hpp"

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>

namespace gpushm::testing {

namespace {

using nlohmann::json;

template <typename Change>
void each_of(json& object, const char* where, Change change) {
  const json::json_pointer pointer(where);
  if (object.contains(pointer) && object.at(pointer).is_array()) {
    for (json& each : object.at(pointer)) {
      if (each.is_object()) {
        change(each);
      }
    }
  }
}

/// Moves the members of `member` up, beside `name`.
void lift(json& each, const char* member) {
  const auto entry = each.find(member);
  if (entry != each.end() && entry->is_object()) {
    const json inner = *entry;
    each.erase(member);
    each.update(inner);
  }
}

/// Moves everything except `name` below `member`.
void lower(json& each, const char* member) {
  json inner = json::object();
  json outer = json::object();
  for (const auto& [key, value] : each.items()) {
    (key == "name" ? outer : inner)[key] = value;
  }
  outer[member] = std::move(inner);
  each = std::move(outer);
}

void lower_request(json& each, const char* member) {
  if (!each.contains("firstAvailable")) {
    lower(each, member);
  }
}

bool is(const object_path& path, std::string_view resource) {
  return path.version == "v1beta1" && path.kind->resource == resource;
}

/// Removes all other members.
void keep(json& object, std::initializer_list<std::string_view> names) {
  if (!object.is_object()) {
    return;
  }
  json kept = json::object();
  for (const std::string_view name : names) {
    const auto found = object.find(name);
    if (found != object.end()) {
      kept[std::string(name)] = *found;
    }
  }
  object = std::move(kept);
}

}  // namespace

void drop_unknown_fields(const object_path& path, json& object) {
  if (path.kind->resource != "resourceslices") {
    return;
  }
  keep(object, {"metadata", "spec"});
  if (!object.contains("spec") || !object["spec"].is_object()) {
    return;
  }
  json& spec = object["spec"];
  keep(spec,
       {"driver",
        "pool",
        "nodeName",
        "nodeSelector",
        "allNodes",
        "perDeviceNodeSelection",
        "devices",
        "sharedCounters"});
  if (spec.contains("pool")) {
    keep(spec["pool"], {"name", "generation", "resourceSliceCount"});
  }
  each_of(object, "/spec/devices", [](json& each) {
    keep(each,
         {"name",
          "attributes",
          "capacity",
          "consumesCounters",
          "nodeName",
          "nodeSelector",
          "allNodes",
          "taints",
          "bindsToNode",
          "bindingConditions",
          "bindingFailureConditions",
          "allowMultipleAllocations"});
  });
}

void to_stored(const object_path& path, json& object) {
  if (is(path, "resourceslices")) {
    each_of(object, "/spec/devices", [](json& each) { lift(each, "basic"); });
  } else if (is(path, "resourceclaims")) {
    each_of(object, "/spec/devices/requests", [](json& each) { lower_request(each, "exactly"); });
  }
  object.erase("apiVersion");
  object.erase("kind");
}

void from_stored(const object_path& path, json& object) {
  if (is(path, "resourceslices")) {
    each_of(object, "/spec/devices", [](json& each) { lower(each, "basic"); });
  } else if (is(path, "resourceclaims")) {
    each_of(object, "/spec/devices/requests", [](json& each) { lift(each, "exactly"); });
  }
  object["apiVersion"] = path.api_version();
  object["kind"] = path.kind->kind;
}

}  // namespace gpushm::testing
