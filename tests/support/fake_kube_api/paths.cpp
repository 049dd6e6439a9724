// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_kube_api/paths.hpp"

#include <algorithm>
#include <array>

#include "base/text/text.hpp"

namespace gpushm::testing {

namespace {

constexpr auto kinds = std::to_array<kube_kind>(
    {{"", "nodes", "Node", "node", false, true},
     {"", "pods", "Pod", "pod", true, true},
     {"resource.k8s.io", "resourceslices", "ResourceSlice", "resourceslice", false, false},
     {"resource.k8s.io", "resourceclaims", "ResourceClaim", "resourceclaim", true, true}});

}  // namespace

const kube_kind* find_kind(std::string_view group, std::string_view resource) {
  const auto* found = std::find_if(kinds.begin(), kinds.end(), [&](const kube_kind& each) {
    return each.group == group && each.resource == resource;
  });
  return found == kinds.end() ? nullptr : found;
}

std::string object_path::qualified_resource() const {
  std::string text(kind->resource);
  if (!kind->group.empty()) {
    text.append(".").append(kind->group);
  }
  return text;
}

std::string object_path::api_version() const {
  return kind->group.empty() ? version : std::string(kind->group).append("/").append(version);
}

std::optional<object_path> parse_path(std::string_view path) {
  auto words = base::split(path, "/");
  if (words.size() < 3 || (words[0] != "api" && words[0] != "apis")) {
    return std::nullopt;
  }
  const bool core = words[0] == "api";
  const std::string_view group = core ? "" : words[1];
  words.erase(words.begin(), words.begin() + (core ? 1 : 2));
  object_path object;
  if (words.empty()) {
    return std::nullopt;
  }
  object.version = words[0];
  words.erase(words.begin());
  if (words.size() >= 3 && words[0] == "namespaces") {
    object.space = words[1];
    words.erase(words.begin(), words.begin() + 2);
  }
  if (words.empty() || words.size() > 3) {
    return std::nullopt;
  }
  object.kind = find_kind(group, words[0]);
  object.name = words.size() > 1 ? words[1] : "";
  object.subresource = words.size() > 2 ? words[2] : "";
  // Namespaced objects need a namespace; cluster-scoped objects have none.
  if (object.kind == nullptr || (object.kind->namespaced ? object.space.empty() && words.size() > 1
                                                         : !object.space.empty())) {
    return std::nullopt;
  }
  return object;
}

}  // namespace gpushm::testing
