// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/dra/driver/slice.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

namespace gpushm::dra {

namespace {

constexpr std::size_t max_name_bytes = 253;

nlohmann::json make_device(unsigned index, bool nested) {
  nlohmann::json attributes{{"type", {{"string", "share"}}},
                            {"driverVersion", {{"version", GPUSHM_VERSION}}}};
  nlohmann::json device{{"name", device_name(index)}};
  if (nested) {
    device["basic"] = {{"attributes", std::move(attributes)}};
  } else {
    device["attributes"] = std::move(attributes);
  }
  return device;
}

/// A slice in the form of the newest version, without apiVersion and kind.
nlohmann::json plain(nlohmann::json slice) {
  if (!slice.is_object()) {
    return slice;
  }
  slice.erase("apiVersion");
  slice.erase("kind");
  static const nlohmann::json::json_pointer devices("/spec/devices");
  if (slice.contains(devices) && slice.at(devices).is_array()) {
    for (nlohmann::json& device : slice.at(devices)) {
      const auto basic = device.find("basic");
      if (basic != device.end() && basic->is_object()) {
        const nlohmann::json inner = *basic;
        device.erase("basic");
        device.update(inner);
      }
    }
  }
  return slice;
}

/// Empty, or the path of the first difference at or below `path`.
std::optional<std::string> first_difference(const nlohmann::json& stored,
                                            const nlohmann::json& expected,
                                            const std::string& path) {
  if (expected.is_object() && stored.is_object()) {
    for (const auto& [key, value] : expected.items()) {
      std::string below = path;
      if (!below.empty()) {
        below += '.';
      }
      below += key;
      const auto same = stored.find(key);
      if (same == stored.end()) {
        return below;
      }
      if (auto other = first_difference(*same, value, below)) {
        return other;
      }
    }
    return std::nullopt;
  }
  if (expected.is_array() && stored.is_array() && expected.size() == stored.size()) {
    for (std::size_t index = 0; index < expected.size(); ++index) {
      if (auto other = first_difference(
              stored[index], expected[index], fmt::format("{}[{}]", path, index))) {
        return other;
      }
    }
    return std::nullopt;
  }
  return stored == expected ? std::nullopt : std::optional(path.empty() ? "." : path);
}

}  // namespace

std::string slice_name(const slice_options& options) {
  const std::string name = fmt::format("{}-{}", options.node, options.driver);
  // Long node names usually differ at their end.
  return name.size() <= max_name_bytes ? name
                                       : "n" + name.substr(name.size() - (max_name_bytes - 1));
}

std::string device_name(unsigned index) {
  return fmt::format("share-{}", index);
}

nlohmann::json make_slice(const slice_options& options,
                          std::string_view version,
                          const std::string& node_uid,
                          std::int64_t generation) {
  nlohmann::json devices = nlohmann::json::array();
  for (unsigned index = 0; index < options.devices; ++index) {
    devices.push_back(make_device(index, version == "v1beta1"));
  }
  const nlohmann::json owner{{"apiVersion", "v1"},
                             {"kind", "Node"},
                             {"name", options.node},
                             {"uid", node_uid},
                             {"controller", true}};
  return {
      {"apiVersion", fmt::format("resource.k8s.io/{}", version)},
      {"kind", "ResourceSlice"},
      {"metadata",
       {{"name", slice_name(options)}, {"ownerReferences", nlohmann::json::array({owner})}}},
      {"spec",
       {{"driver", options.driver},
        {"nodeName", options.node},
        {"pool", {{"name", options.node}, {"generation", generation}, {"resourceSliceCount", 1}}},
        {"devices", std::move(devices)}}}};
}

bool is_of_this_node(const nlohmann::json& slice, const slice_options& options) {
  return text_in(slice, "/spec/driver") == options.driver &&
         text_in(slice, "/spec/nodeName") == options.node;
}

bool is_in_own_pool(const nlohmann::json& slice, const slice_options& options) {
  return is_of_this_node(slice, options) && text_in(slice, "/spec/pool/name") == options.node;
}

std::string difference(const nlohmann::json& stored, const nlohmann::json& expected) {
  return first_difference(plain(stored), plain(expected), {}).value_or(std::string());
}

std::string text_in(const nlohmann::json& object, const char* pointer) {
  const nlohmann::json::json_pointer place(pointer);
  return object.contains(place) && object.at(place).is_string()
             ? object.at(place).get<std::string>()
             : std::string();
}

std::int64_t generation_of(const nlohmann::json& slice) {
  static const nlohmann::json::json_pointer place("/spec/pool/generation");
  return slice.contains(place) && slice.at(place).is_number_integer()
             ? slice.at(place).get<std::int64_t>()
             : 0;
}

std::int64_t generation_after(std::int64_t generation) {
  return generation < std::numeric_limits<std::int64_t>::max() ? generation + 1 : 1;
}

}  // namespace gpushm::dra
