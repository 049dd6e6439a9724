// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "kubelet/rest/client.hpp"
#include "kubelet/rest/transfer.hpp"

namespace gpushm::kube {

/// Who asked for what: for messages.
struct asked {
  std::string_view operation;  ///< "list"; also Kubernetes' verb
  std::string_view path;
};

/// Nothing when it is no JSON, or nests deeper than any object does.
[[nodiscard]] std::optional<nlohmann::json> json_of(std::string_view text);

/// The object that was answered. Throws `api_error` for another status than success, `error`
/// (protocol_error) for what is no JSON object.
[[nodiscard]] nlohmann::json object_of(const asked& what, const http_response& response);

/// Of a Status object; `status` counts when it has no code itself.
[[noreturn]] void throw_status(const asked& what,
                               int status,
                               const nlohmann::json& object,
                               std::chrono::seconds retry_after);

}  // namespace gpushm::kube
