// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace gpushm_python {

/// Seconds, as Python has them, in the milliseconds of the C interface, rounded up; nothing:
/// GPUSHM_FOREVER. Raises ValueError for NaN and for less than 0, which names `argument`. Needs the
/// GIL.
std::int64_t to_milliseconds(std::optional<double> seconds, const char* argument = "timeout");

/// The end of a wait.
/// Thread-safety: distinct objects: safe; shared objects: safe.
class deadline {
 public:
  explicit deadline(std::int64_t milliseconds);
  /// 0 if it has passed; GPUSHM_FOREVER without a limit.
  [[nodiscard]] std::int64_t left_ms() const;

 private:
  std::optional<std::chrono::steady_clock::time_point> end_;
};

}  // namespace gpushm_python
