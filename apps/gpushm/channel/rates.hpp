// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace gpushm::cli {

/// "1,234,567".
[[nodiscard]] std::string grouped(std::uint64_t value);
/// "983 items/s, 61.4 MiB/s"; three digits.
[[nodiscard]] std::string rate_text(std::uint64_t items, std::uint64_t bytes, double seconds);
/// 0 if no time has passed.
[[nodiscard]] double per_second(std::uint64_t count, double seconds);

}  // namespace gpushm::cli
