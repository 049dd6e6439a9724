// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/channel/rates.hpp"

#include <fmt/core.h>

#include <cmath>

#include "base/text/size_text.hpp"

namespace gpushm::cli {

std::string grouped(std::uint64_t value) {
  std::string digits = std::to_string(value);
  for (std::size_t at = digits.size(); at > 3; at -= 3) {
    digits.insert(at - 3, 1, ',');
  }
  return digits;
}

double per_second(std::uint64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

std::string rate_text(std::uint64_t items, std::uint64_t bytes, double seconds) {
  const double rate = per_second(items, seconds);
  return fmt::format("{} items/s, {}/s",
                     rate < 100 ? fmt::format("{:.3g}", rate)
                                : grouped(static_cast<std::uint64_t>(std::llround(rate))),
                     base::size_text(static_cast<std::uint64_t>(per_second(bytes, seconds))));
}

std::string recent_rate::text(std::uint64_t items, std::uint64_t bytes) {
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - at_).count();
  std::string result = rate_text(items - items_, bytes - bytes_, seconds);
  at_ = now;
  items_ = items;
  bytes_ = bytes;
  return result;
}

}  // namespace gpushm::cli
