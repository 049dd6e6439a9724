// SPDX-License-Identifier: Apache-2.0
#include "timeout.hpp"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "gpushm/gpushm.h"

namespace gpushm_python {
namespace {

// Longer than that is without a limit: a clock could not represent the end.
constexpr double max_milliseconds = 1e15;

}  // namespace

std::int64_t to_milliseconds(std::optional<double> seconds, const char* argument) {
  if (!seconds.has_value()) {
    return GPUSHM_FOREVER;
  }
  if (std::isnan(*seconds) || *seconds < 0) {
    const std::string text = std::string(argument) +
                             (*seconds < 0 ? " is negative" : " is not a number") +
                             "; give seconds, 0 to not wait, or None for no limit";
    throw nanobind::value_error(text.c_str());
  }
  const double milliseconds = std::ceil(*seconds * 1e3);
  if (milliseconds >= max_milliseconds) {
    return GPUSHM_FOREVER;
  }
  return static_cast<std::int64_t>(milliseconds);
}

deadline::deadline(std::int64_t milliseconds) {
  if (milliseconds != GPUSHM_FOREVER) {
    end_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  }
}

std::int64_t deadline::left_ms() const {
  if (!end_.has_value()) {
    return GPUSHM_FOREVER;
  }
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(*end_ - std::chrono::steady_clock::now());
  return std::max<std::int64_t>(0, left.count());
}

}  // namespace gpushm_python
