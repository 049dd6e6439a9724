// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_kube_api/admission.hpp"

#include <algorithm>
#include <array>

namespace gpushm::testing {

namespace {

using nlohmann::json;

std::string text_at(const json& object, const char* pointer) {
  const json::json_pointer place(pointer);
  return object.contains(place) && object.at(place).is_string()
             ? object.at(place).get<std::string>()
             : std::string();
}

}  // namespace

std::string policy_violation(const std::string& node, const json& object, const json& before) {
  if (node.empty()) {
    return "the token does not name the node of its pod: use the pod's own token, from "
           "Kubernetes 1.32 or newer";
  }
  const std::array<const json*, 2> slices{&before, &object};
  const auto all_slices_have = [&](const char* pointer, const std::string& value) {
    return std::all_of(slices.begin(), slices.end(), [&](const json* each) {
      return each->is_null() || text_at(*each, pointer) == value;
    });
  };
  const std::string agent = "the agent of node " + node;
  if (!all_slices_have("/spec/nodeName", node)) {
    return agent + " may only write ResourceSlices of its own node";
  }
  if (!all_slices_have("/spec/driver", "gpushm.dev")) {
    return "the agent may only write ResourceSlices of the driver gpushm.dev";
  }
  if (!object.is_null() && !all_slices_have("/spec/pool/name", node)) {
    return agent + " may only write to the pool of its own node";
  }
  constexpr std::size_t longest_name = 253;
  std::string name = node + "-gpushm.dev";
  if (name.size() > longest_name) {
    name = "n" + name.substr(name.size() - (longest_name - 1));
  }
  if (before.is_null() && text_at(object, "/metadata/name") != name) {
    return agent + " may only create its own ResourceSlice";
  }
  return {};
}

std::string denial(const fake_kube_options& options,
                   const object_path& path,
                   const http_request& request,
                   const json& object,
                   const json& before) {
  const auto header = request.headers.find("authorization");
  constexpr std::string_view prefix = "Bearer ";
  if (path.kind->resource != "resourceslices" || header == request.headers.end() ||
      !header->second.starts_with(prefix)) {
    return {};
  }
  const auto agent = options.agents.find(header->second.substr(prefix.size()));
  const std::string why = agent == options.agents.end()
                              ? std::string()
                              : policy_violation(agent->second, object, before);
  return why.empty() ? why
                     : "ValidatingAdmissionPolicy 'resourceslices.gpushm.dev' with binding "
                       "'resourceslices.gpushm.dev' denied request: " +
                           why;
}

}  // namespace gpushm::testing
