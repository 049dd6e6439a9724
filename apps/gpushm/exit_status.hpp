// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpushm/error.hpp"

namespace gpushm::cli {

inline constexpr int exit_ok = 0;
inline constexpr int exit_failed = 1;
inline constexpr int exit_usage = 2;
/// The status of a comparison that could not be made, as of diff(1): 1 means that the two differ.
inline constexpr int exit_not_compared = 2;

/// Invalid or contradicting options: nothing was done.
class usage_error : public error {
 public:
  using error::error;
};

/// A comparison that could not be made, whatever the cause.
class not_compared : public error {
 public:
  explicit not_compared(const error& why) : error(why) {}
};

}  // namespace gpushm::cli
