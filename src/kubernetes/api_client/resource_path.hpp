// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gpushm::api_client {

/// Percent-encodes a value for a URL's query.
[[nodiscard]] std::string query_escaped(std::string_view text);

/// Returns the next step for a request that lacked a permission. `verb` is a Kubernetes verb
/// ("list").
[[nodiscard]] std::string permission_advice(std::string_view verb, std::string_view path);

}  // namespace gpushm::api_client
