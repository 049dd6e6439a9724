// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gpushm::cdi {

/// "vendor/class=device"
struct qualified_name {
  std::string kind;  ///< "vendor/class"
  std::string device;
  bool operator==(const qualified_name&) const = default;
};

/// Returns nullopt if it is not a valid name of that form.
[[nodiscard]] std::optional<qualified_name> parse_qualified_name(std::string_view text);

// Why a name is invalid, as a clause ("it must begin with a letter"); empty when it is valid.
[[nodiscard]] std::optional<std::string> why_invalid_vendor(std::string_view text);
[[nodiscard]] std::optional<std::string> why_invalid_class(std::string_view text);
[[nodiscard]] std::optional<std::string> why_invalid_device(std::string_view text);

}  // namespace gpushm::cdi
