// SPDX-License-Identifier: Apache-2.0
#include "fake_kube_api/convert.hpp"

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

/// What `member` holds comes beside `name`.
void lift(json& each, const char* member) {
  const auto found = each.find(member);
  if (found != each.end() && found->is_object()) {
    const json inner = *found;
    each.erase(member);
    each.update(inner);
  }
}

/// Everything but `name` goes below `member`.
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

}  // namespace

void to_stored(const object_path& from, json& object) {
  if (is(from, "resourceslices")) {
    each_of(object, "/spec/devices", [](json& each) { lift(each, "basic"); });
  } else if (is(from, "resourceclaims")) {
    each_of(object, "/spec/devices/requests", [](json& each) { lower_request(each, "exactly"); });
  }
  object.erase("apiVersion");
  object.erase("kind");
}

void from_stored(const object_path& to, json& object) {
  if (is(to, "resourceslices")) {
    each_of(object, "/spec/devices", [](json& each) { lower(each, "basic"); });
  } else if (is(to, "resourceclaims")) {
    each_of(object, "/spec/devices/requests", [](json& each) { lift(each, "exactly"); });
  }
  object["apiVersion"] = to.api_version();
  object["kind"] = to.kind->kind;
}

}  // namespace gpushm::testing
