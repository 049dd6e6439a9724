// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gpushm::testing {

/// A kind of object that the server supports.
struct kube_kind {
  std::string_view group;     ///< empty: the core group
  std::string_view resource;  ///< "resourceslices"
  std::string_view kind;      ///< "ResourceSlice"
  std::string_view singular;
  bool namespaced = false;
  bool has_status = false;
};
/// Null if there is no such resource.
[[nodiscard]] const kube_kind* find_kind(std::string_view group, std::string_view resource);

/// "/apis/GROUP/VERSION[/namespaces/NS]/RESOURCE[/NAME[/SUBRESOURCE]]", parsed.
struct object_path {
  const kube_kind* kind = nullptr;
  std::string version;
  std::string space;  ///< namespace; empty: all, or none
  std::string name;   ///< empty: the collection
  std::string subresource;

  /// "resourceslices.resource.k8s.io", "nodes".
  [[nodiscard]] std::string qualified_resource() const;
  /// "resource.k8s.io/v1", "v1".
  [[nodiscard]] std::string api_version() const;
};
/// Nullopt if it is not a path of a supported resource.
[[nodiscard]] std::optional<object_path> parse_path(std::string_view path);

}  // namespace gpushm::testing
