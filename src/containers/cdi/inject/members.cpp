// SPDX-License-Identifier: Apache-2.0
// Finds and creates the members of a config that edits change.
#include "base/text/text.hpp"
#include "containers/cdi/inject/parts.hpp"

namespace gpushm::cdi {

namespace {

[[noreturn]] void refuse(std::string_view path, std::string_view expected) {
  std::string cause = "its member \"";
  cause += path;
  cause += "\" is not ";
  cause += expected;
  throw error(errc::invalid_argument, "edit config", {}, cause);
}

template <typename Config>
Config* member(Config& object, std::string_view key) {
  const auto found = object.find(std::string(key));
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// The part of a dotted path before the last dot.
std::string_view parent_of(std::string_view path) {
  const auto dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

std::string_view name_of(std::string_view path) {
  return path.substr(path.rfind('.') + 1);  // npos + 1 is 0
}

const oci_config* find(const oci_config& config, std::string_view path) {
  const oci_config* at = &config;
  for (const std::string_view part : base::split(path, ".")) {
    if (!at->is_object()) {
      const auto shown = static_cast<std::size_t>(part.data() - path.data());
      refuse(path.substr(0, shown == 0 ? 0 : shown - 1), "an object");
    }
    at = member(*at, part);
    if (at == nullptr) {
      return nullptr;
    }
  }
  return at;
}

}  // namespace

oci_config& object_at(oci_config& config, std::string_view path) {
  if (path.empty()) {
    if (!config.is_object()) {
      throw error(errc::invalid_argument, "edit config", {}, "it is not a JSON object");
    }
    return config;
  }
  oci_config& created = object_at(config, parent_of(path))[std::string(name_of(path))];
  if (created.is_null()) {
    created = oci_config::object();
  }
  if (!created.is_object()) {
    refuse(path, "an object");
  }
  return created;
}

oci_config& array_at(oci_config& config, std::string_view path) {
  oci_config& created = object_at(config, parent_of(path))[std::string(name_of(path))];
  if (created.is_null()) {
    created = oci_config::array();
  }
  if (!created.is_array()) {
    refuse(path, "an array");
  }
  return created;
}

const oci_config* find_object(const oci_config& config, std::string_view path) {
  const oci_config* found = find(config, path);
  if (found != nullptr && !found->is_object()) {
    refuse(path, "an object");
  }
  return found;
}

const oci_config* find_array(const oci_config& config, std::string_view path) {
  const oci_config* found = find(config, path);
  if (found != nullptr && !found->is_array()) {
    refuse(path, "an array");
  }
  return found;
}

std::string_view text_at(const oci_config& object, const char* key, std::string_view where) {
  if (!object.is_object()) {
    refuse(where, "an array of objects");
  }
  const oci_config* config = member(object, key);
  if (config == nullptr) {
    return {};
  }
  if (!config->is_string()) {
    std::string path(where);
    path += ".";
    path += key;
    refuse(path, "a string");
  }
  return config->get_ref<const std::string&>();
}

std::string_view variable_name(const oci_config& line) {
  if (!line.is_string()) {
    refuse("process.env", "an array of strings");
  }
  const std::string_view text = line.get_ref<const std::string&>();
  return text.substr(0, text.find('='));
}

}  // namespace gpushm::cdi
