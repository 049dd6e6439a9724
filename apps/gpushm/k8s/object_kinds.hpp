// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace gpushm::k8s {

/// What is known of a kind of objects without its schema.
enum class kind_role {
  pods,      ///< it may create pods, or its group is not known
  no_pods,   ///< it creates none: "Service", "ServiceMonitor"
  patterns,  ///< it may contain pods that are schemas or patterns of a policy: not to be read
};

/// `api_version`: "apps/v1".
[[nodiscard]] kind_role role_of(std::string_view api_version, std::string_view kind);

/// Whether the group of `api_version` is one of Kubernetes itself.
[[nodiscard]] bool is_builtin_group(std::string_view api_version);

}  // namespace gpushm::k8s
