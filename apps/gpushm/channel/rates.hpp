// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace gpushm::cli {

/// "1,234,567".
[[nodiscard]] std::string grouped(std::uint64_t value);
/// "983 items/s, 61.4 MiB/s"; three digits.
[[nodiscard]] std::string rate_text(std::uint64_t items, std::uint64_t bytes, double seconds);
/// 0 if no time has passed.
[[nodiscard]] double per_second(std::uint64_t count, double seconds);

/// The rate since the last look.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class recent_rate {
 public:
  [[nodiscard]] std::string text(std::uint64_t items, std::uint64_t bytes);

 private:
  std::chrono::steady_clock::time_point at_ = std::chrono::steady_clock::now();
  std::uint64_t items_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace gpushm::cli
