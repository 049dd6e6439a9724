// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gpushm::kube {

/// Of RFC 4648's standard alphabet, with its padding; blanks and line ends are passed over. Nothing
/// when it is not that.
[[nodiscard]] std::optional<std::string> base64_decoded(std::string_view text);

}  // namespace gpushm::kube
