// SPDX-License-Identifier: Apache-2.0
#include "apps/support/duration.hpp"

#include <fmt/core.h>

#include <array>
#include <cstdint>

namespace gpushm::app {

namespace {

struct unit {
  std::string_view name;
  std::uint64_t microseconds;
};
constexpr std::array<unit, 5> units{
    {{"us", 1}, {"ms", 1'000}, {"s", 1'000'000}, {"m", 60'000'000}, {"h", 3'600'000'000}}};

// The upper bound of poll(2)'s timeout.
constexpr std::uint64_t max_ms = INT32_MAX;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

std::optional<std::chrono::milliseconds> parse_duration(std::string_view text) {
  if (text == "0") {
    return std::chrono::milliseconds(0);
  }
  std::uint64_t digits = 0;
  std::uint64_t scale = 1;
  bool point = false;
  bool any = false;
  std::size_t used = 0;
  for (; used < text.size(); ++used) {
    const char c = text[used];
    if (c == '.' && !point) {
      point = true;
    } else if (is_digit(c)) {
      if (digits > 1'000'000'000 || scale > 100'000) {
        return std::nullopt;
      }
      digits = digits * 10 + static_cast<std::uint64_t>(c - '0');
      scale *= point ? 10 : 1;
      any = true;
    } else {
      break;
    }
  }
  if (!any) {
    return std::nullopt;
  }
  const std::string_view name = text.substr(used);
  for (const unit& candidate : units) {
    if (candidate.name == name) {
      // At most 10^10 times 3.6 * 10^9: below 2^65, so whole units are compared before multiplying.
      if (digits / scale > max_ms * 1'000 / candidate.microseconds) {
        return std::nullopt;
      }
      const std::uint64_t divisor = scale * 1'000;
      const std::uint64_t whole = digits / scale * candidate.microseconds;
      const std::uint64_t part = digits % scale * candidate.microseconds;
      const std::uint64_t ms = (whole * scale + part + divisor - 1) / divisor;
      return ms > max_ms ? std::nullopt : std::optional(std::chrono::milliseconds(ms));
    }
  }
  return std::nullopt;
}

std::string duration_text(std::chrono::nanoseconds value) {
  const auto ns = static_cast<double>(value.count());
  double number = ns / 1e9;
  const char* name = "s";
  if (ns < 1e6) {
    number = ns / 1e3;
    name = "us";
  } else if (ns < 1e9) {
    number = ns / 1e6;
    name = "ms";
  }
  const int decimals = number >= 100 ? 0 : number >= 10 ? 1 : 2;
  return fmt::format("{:.{}f} {}", number, decimals, name);
}

}  // namespace gpushm::app
