// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace gpushm::app {

/// "500ms", "10s", "1.5s", "2m", "1h" → milliseconds, rounded up. Requires a unit, except for "0".
/// Returns nullopt if malformed or longer than 24 days.
[[nodiscard]] std::optional<std::chrono::milliseconds> parse_duration(std::string_view text);

/// "1.25 s", "312 ms", "85.2 us": three digits.
[[nodiscard]] std::string duration_text(std::chrono::nanoseconds value);

}  // namespace gpushm::app
