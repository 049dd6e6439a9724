// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gpushm::api_client {

/// Decodes RFC 4648's standard alphabet with padding; ignores blanks and line ends. Empty when the
/// text is invalid.
[[nodiscard]] std::optional<std::string> base64_decoded(std::string_view text);

}  // namespace gpushm::api_client
