// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_kube_api/validate.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "base/text/text.hpp"

namespace gpushm::testing {

namespace {

using nlohmann::json;

constexpr std::size_t longest_subdomain = 253;
constexpr std::size_t longest_label = 63;
constexpr std::size_t max_devices = 128;
constexpr std::size_t max_devices_with_taints_or_counters = 64;
constexpr std::size_t max_attributes = 32;
constexpr std::size_t longest_identifier = 32;
constexpr std::size_t longest_value = 64;

bool is_label(const std::string& text) {
  static const std::regex form("[a-z0-9]([-a-z0-9]*[a-z0-9])?");
  return text.size() <= longest_label && std::regex_match(text, form);
}
bool is_subdomain(const std::string& text, std::size_t longest) {
  static const std::regex form("[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*");
  return text.size() <= longest && std::regex_match(text, form);
}
bool is_identifier(const std::string& text) {
  static const std::regex form("[A-Za-z_][A-Za-z0-9_]*");
  return text.size() <= longest_identifier && std::regex_match(text, form);
}
bool is_version(const std::string& text) {
  static const std::regex form(
      "(0|[1-9][0-9]*)\\.(0|[1-9][0-9]*)\\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?(\\+[0-9A-Za-z.-]+)?");
  return text.size() <= longest_value && std::regex_match(text, form);
}
bool is_quantity(const json& value) {
  static const std::regex form("[+-]?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([numkMGTPE]|[KMGTPE]i)?");
  return value.is_number() ||
         (value.is_string() && std::regex_match(value.get<std::string>(), form));
}

class checker {
 public:
  explicit checker(std::vector<field_cause>& causes) : found_(causes) {}

  void required(const std::string& field, std::string_view detail = {}) {
    add(field, "FieldValueRequired", std::string("Required value").append(tail(detail)));
  }
  void invalid(const std::string& field, const json& value, std::string_view detail) {
    add(field,
        "FieldValueInvalid",
        std::string("Invalid value: ").append(value.dump()).append(tail(detail)));
  }
  void too_many(const std::string& field, std::size_t count, std::size_t most) {
    add(field,
        "FieldValueTooMany",
        std::string("Too many: ")
            .append(std::to_string(count))
            .append(": must have at most ")
            .append(std::to_string(most))
            .append(" items"));
  }
  void duplicate(const std::string& field, const json& value) {
    add(field, "FieldValueDuplicate", "Duplicate value: " + value.dump());
  }

  /// The string at `name`; reports a missing or empty one.
  std::string text(const json& from, const char* name, const std::string& field) {
    const auto entry = from.find(name);
    if (entry == from.end() || !entry->is_string() || entry->get<std::string>().empty()) {
      required(field);
      return {};
    }
    return entry->get<std::string>();
  }

 private:
  static std::string tail(std::string_view detail) {
    return detail.empty() ? std::string() : std::string(": ").append(detail);
  }
  void add(const std::string& field, const char* reason, std::string message) {
    found_.push_back({field, reason, std::move(message)});
  }
  std::vector<field_cause>& found_;
};

std::string within(const std::string& field, std::size_t index) {
  return std::string(field).append("[").append(std::to_string(index)).append("]");
}

void check_pool(const json& spec, checker& check) {
  const json pool = spec.value("pool", json::object());
  const std::string name = check.text(pool, "name", "spec.pool.name");
  for (const std::string_view part : base::split(name, "/")) {
    if (!is_subdomain(std::string(part), longest_subdomain)) {
      check.invalid("spec.pool.name", name, "must be DNS subdomains, separated by slashes");
    }
  }
  const json count = pool.value("resourceSliceCount", json(0));
  if (!count.is_number_integer() || count.get<std::int64_t>() <= 0) {
    check.invalid("spec.pool.resourceSliceCount", count, "must be greater than zero");
  }
  const json generation = pool.value("generation", json(0));
  if (!generation.is_number_integer() || generation.get<std::int64_t>() < 0) {
    check.invalid("spec.pool.generation", generation, "must be greater than or equal to zero");
  }
}

void check_node_choice(const json& spec, checker& check) {
  constexpr auto ways = std::to_array<const char*>(
      {"nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"});
  const auto given = std::count_if(
      ways.begin(), ways.end(), [&spec](const char* each) { return spec.contains(each); });
  constexpr auto rule =
      "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
  if (given == 0) {
    check.required("spec", rule);
  } else if (given > 1) {
    check.invalid("spec", "", rule);
  }
  const json node = spec.value("nodeName", json("n"));
  if (!node.is_string() || !is_subdomain(node.get<std::string>(), longest_subdomain)) {
    check.invalid("spec.nodeName", node, "must be a DNS subdomain");
  }
}

void check_attribute(const json& value, const std::string& field, checker& check) {
  if (!value.is_object() || value.size() != 1) {
    check.invalid(field, value, "exactly one value must be specified");
    return;
  }
  const auto only = value.begin();
  const std::string& type = only.key();
  const json& content = only.value();
  const bool fits =
      (type == "int" && content.is_number_integer()) || (type == "bool" && content.is_boolean()) ||
      (type == "string" && content.is_string() &&
       content.get<std::string>().size() <= longest_value) ||
      (type == "version" && content.is_string() && is_version(content.get<std::string>()));
  if (!fits) {
    check.invalid(field + "." + type, content, "must be of the type that its name says");
  }
}

void check_names(const json& list, const std::string& field, checker& check) {
  for (const auto& [key, value] : list.items()) {
    const std::size_t slash = key.find('/');
    const bool has_domain = slash != std::string::npos;
    if (!is_identifier(has_domain ? key.substr(slash + 1) : key) ||
        (has_domain && !is_subdomain(key.substr(0, slash), longest_label))) {
      check.invalid(field, key, "must be [domain/]identifier");
    }
  }
}

void check_device(const json& device, const std::string& field, checker& check) {
  const json attributes = device.value("attributes", json::object());
  const json capacity = device.value("capacity", json::object());
  if (attributes.size() + capacity.size() > max_attributes) {
    check.invalid(field,
                  attributes.size() + capacity.size(),
                  "the total number of attributes and capacities must not exceed 32");
  }
  check_names(attributes, field + ".attributes", check);
  check_names(capacity, field + ".capacity", check);
  for (const auto& [name, value] : attributes.items()) {
    check_attribute(value, field + ".attributes[" + name + "]", check);
  }
  for (const auto& [name, value] : capacity.items()) {
    if (!value.is_object() || !is_quantity(value.value("value", json()))) {
      check.invalid(field + ".capacity[" + name + "]", value, "must have a quantity as its value");
    }
  }
}

void check_devices(const json& spec, checker& check) {
  const json devices = spec.value("devices", json::array());
  if (!devices.is_array()) {
    check.invalid("spec.devices", devices, "must be a list");
    return;
  }
  const bool has_more = std::any_of(devices.begin(), devices.end(), [](const json& each) {
    return each.is_object() && (each.contains("taints") || each.contains("consumesCounters"));
  });
  const std::size_t most = has_more ? max_devices_with_taints_or_counters : max_devices;
  if (devices.size() > most) {
    check.too_many("spec.devices", devices.size(), most);
  }
  std::set<std::string> names;
  for (std::size_t at = 0; at < devices.size(); ++at) {
    const std::string field = within("spec.devices", at);
    const json device = devices[at].is_object() ? devices[at] : json::object();
    const std::string name = check.text(device, "name", field + ".name");
    if (!name.empty() && !is_label(name)) {
      check.invalid(field + ".name", name, "must be a DNS label");
    }
    if (!name.empty() && !names.insert(name).second) {
      check.duplicate(field, name);
    }
    check_device(device, field, check);
  }
}

void check_slice(const json& object, const json& before, checker& check) {
  const json spec = object.value("spec", json::object());
  const std::string driver = check.text(spec, "driver", "spec.driver");
  if (!driver.empty() && !is_subdomain(driver, longest_label)) {
    check.invalid("spec.driver", driver, "must be a DNS subdomain of at most 63 characters");
  }
  check_pool(spec, check);
  check_node_choice(spec, check);
  check_devices(spec, check);
  if (before.is_null()) {
    return;
  }
  for (const char* fixed : {"/driver", "/nodeName", "/pool/name"}) {
    const json::json_pointer pointer(fixed);
    const json now = spec.contains(pointer) ? spec.at(pointer) : json();
    const json& old = before.at("spec");
    if (now != (old.contains(pointer) ? old.at(pointer) : json())) {
      std::string field = std::string("spec").append(fixed);
      std::replace(field.begin(), field.end(), '/', '.');
      check.invalid(field, now, "field is immutable");
    }
  }
}

void check_claim(const json& object, const json& before, checker& check) {
  const json spec = object.value("spec", json::object());
  if (!before.is_null() && spec != before.value("spec", json::object())) {
    check.invalid("spec", spec, "field is immutable");
  }
  const json::json_pointer where("/devices/requests");
  const json requests = spec.contains(where) ? spec.at(where) : json::array();
  for (std::size_t at = 0; at < requests.size(); ++at) {
    const std::string field = within("spec.devices.requests", at);
    const std::string name = check.text(requests[at], "name", field + ".name");
    if (!name.empty() && !is_label(name)) {
      check.invalid(field + ".name", name, "must be a DNS label");
    }
    if (requests[at].contains("exactly")) {
      static_cast<void>(check.text(
          requests[at].at("exactly"), "deviceClassName", field + ".exactly.deviceClassName"));
    } else if (!requests[at].contains("firstAvailable")) {
      check.required(field, "exactly one of `exactly` or `firstAvailable` is required");
    }
  }
}

}  // namespace

std::vector<field_cause> validate(const object_path& path, const json& object, const json& before) {
  std::vector<field_cause> causes;
  checker check(causes);
  const std::string name = object.at("metadata").value("name", "");
  if (!is_subdomain(name, longest_subdomain)) {
    check.invalid("metadata.name", name, "must be a DNS subdomain of at most 253 characters");
  }
  for (const json& owner : object.at("metadata").value("ownerReferences", json::array())) {
    for (const char* field : {"apiVersion", "kind", "name", "uid"}) {
      static_cast<void>(
          check.text(owner, field, std::string("metadata.ownerReferences.").append(field)));
    }
  }
  if (path.kind->resource == "resourceslices") {
    check_slice(object, before, check);
  } else if (path.kind->resource == "resourceclaims") {
    check_claim(object, before, check);
  }
  return causes;
}

}  // namespace gpushm::testing
