// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_kube_api/discovery.hpp"

#include <array>
#include <initializer_list>

namespace gpushm::testing {

namespace {

using nlohmann::json;

constexpr const char* resource_group = "resource.k8s.io";

json group_version(const std::string& version) {
  return {{"groupVersion", std::string(resource_group).append("/").append(version)},
          {"version", version}};
}

json group(const std::vector<std::string>& versions) {
  json listed = json::array();
  for (const std::string& each : versions) {
    listed.push_back(group_version(each));
  }
  return {{"name", resource_group},
          {"versions", listed},
          {"preferredVersion", group_version(versions.front())}};
}

json resources(std::string_view group_name,
               const std::string& version,
               std::initializer_list<const char*> names) {
  json listed = json::array();
  for (const char* name : names) {
    const kube_kind* kind = find_kind(group_name, name);
    listed.push_back({{"name", kind->resource},
                      {"singularName", kind->singular},
                      {"namespaced", kind->namespaced},
                      {"kind", kind->kind},
                      {"verbs", {"create", "delete", "get", "list", "update", "watch"}}});
  }
  return {{"kind", "APIResourceList"},
          {"apiVersion", "v1"},
          {"groupVersion", version},
          {"resources", listed}};
}

}  // namespace

std::optional<reply> answer_discovery(const std::string& path,
                                      const std::vector<std::string>& versions) {
  if (path == "/version") {
    return json_reply({{"major", "1"}, {"minor", "34"}, {"gitVersion", "v1.34.0"}});
  }
  if (path == "/api") {
    return json_reply({{"kind", "APIVersions"}, {"versions", {"v1"}}});
  }
  if (path == "/api/v1") {
    return json_reply(resources("", "v1", {"nodes", "pods"}));
  }
  if (path == "/apis") {
    json groups = json::array();
    if (!versions.empty()) {
      groups.push_back(group(versions));
    }
    return json_reply({{"kind", "APIGroupList"}, {"apiVersion", "v1"}, {"groups", groups}});
  }
  const std::string own = std::string("/apis/").append(resource_group);
  if (path == own && !versions.empty()) {
    json one = group(versions);
    one["kind"] = "APIGroup";
    one["apiVersion"] = "v1";
    return json_reply(one);
  }
  for (const std::string& each : versions) {
    if (path == std::string(own).append("/").append(each)) {
      return json_reply(resources(resource_group,
                                  std::string(resource_group).append("/").append(each),
                                  {"resourceslices", "resourceclaims"}));
    }
  }
  return std::nullopt;
}

}  // namespace gpushm::testing
