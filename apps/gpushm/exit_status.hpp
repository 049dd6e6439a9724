// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpushm/error.hpp"

namespace gpushm::cli {

inline constexpr int exit_ok = 0;
inline constexpr int exit_failed = 1;
inline constexpr int exit_usage = 2;

/// Invalid or contradicting options: nothing was done.
class usage_error : public error {
 public:
  using error::error;
};

}  // namespace gpushm::cli
