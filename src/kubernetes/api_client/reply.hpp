// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "kubernetes/api_client/client.hpp"
#include "kubernetes/api_client/transfer.hpp"

namespace gpushm::api_client {

/// The operation and path of a request, for messages.
struct request_name {
  std::string_view operation;  ///< "list"; also Kubernetes' verb
  std::string_view path;
};

/// Returns nullopt if `text` is not JSON or is nested deeper than any API object.
[[nodiscard]] std::optional<nlohmann::json> json_of(std::string_view text);

/// Returns the object in the response. Throws `api_error` for a status other than success, `error`
/// (protocol_error) when it is not a JSON object.
[[nodiscard]] nlohmann::json object_of(const request_name& name, const http_response& response);

/// Throws the error of a Status object; `status` applies when the object has no code.
[[noreturn]] void throw_status(const request_name& name,
                               int status,
                               const nlohmann::json& object,
                               std::chrono::seconds retry_after);

}  // namespace gpushm::api_client
