// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace gpushm::app {

/// "500ms", "10s", "1.5s", "2m", "1h" → milliseconds, rounded up. A bare number is refused, as it
/// does not say its unit; "0" alone is taken. Nothing when malformed or longer than 24 days.
[[nodiscard]] std::optional<std::chrono::milliseconds> parse_duration(std::string_view text);

/// "1.25 s", "312 ms", "85.2 us": three digits, for people.
[[nodiscard]] std::string duration_text(std::chrono::nanoseconds value);

}  // namespace gpushm::app
