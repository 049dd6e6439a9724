// SPDX-License-Identifier: Apache-2.0
#include "kubelet/dra/slice.hpp"

#include <algorithm>

namespace gpushm::dra {

namespace {

constexpr std::size_t longest_name = 253;

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

}  // namespace

std::string slice_name(const slice_options& options) {
  std::string name = options.node;
  name.append("-").append(options.driver);
  // Long names of nodes differ at their end, if anywhere.
  return name.size() <= longest_name ? name : "n" + name.substr(name.size() - (longest_name - 1));
}

std::string device_name(unsigned index) {
  return std::string("share-").append(std::to_string(index));
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
      {"apiVersion", std::string("resource.k8s.io/").append(version)},
      {"kind", "ResourceSlice"},
      {"metadata",
       {{"name", slice_name(options)}, {"ownerReferences", nlohmann::json::array({owner})}}},
      {"spec",
       {{"driver", options.driver},
        {"nodeName", options.node},
        {"pool", {{"name", options.node}, {"generation", generation}, {"resourceSliceCount", 1}}},
        {"devices", std::move(devices)}}}};
}

bool contains(const nlohmann::json& found, const nlohmann::json& wanted) {
  if (wanted.is_object() && found.is_object()) {
    return std::all_of(wanted.items().begin(), wanted.items().end(), [&](const auto& each) {
      const auto same = found.find(each.key());
      return same != found.end() && contains(*same, each.value());
    });
  }
  if (wanted.is_array() && found.is_array()) {
    return std::equal(found.begin(), found.end(), wanted.begin(), wanted.end(), contains);
  }
  return found == wanted;
}

std::int64_t generation_of(const nlohmann::json& slice) {
  static const nlohmann::json::json_pointer place("/spec/pool/generation");
  return slice.contains(place) && slice.at(place).is_number_integer()
             ? slice.at(place).get<std::int64_t>()
             : 0;
}

}  // namespace gpushm::dra
