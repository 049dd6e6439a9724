// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/domain.hpp"
#include "gpushm/error.hpp"

namespace gpushm::core {

/// `failure`, with which `request` ends without having waited for the whole timeout: an open that
/// has none can be given one.
[[nodiscard]] inline error before_timeout(const error& failure, const open_request& request) {
  if (request.deadline) {
    return failure;
  }
  return {failure.code(),
          {},
          {},
          failure.cause(),
          failure.next_step() + "; an open with a timeout waits for the name",
          failure.details()};
}

/// `failure`, with which an open ends when its timeout does.
[[nodiscard]] inline error after_timeout(const error& failure) {
  return {failure.code(),
          {},
          {},
          failure.cause() + "; the name was not published within the timeout",
          failure.next_step() + "; if it is published later, give a longer timeout",
          failure.details()};
}

}  // namespace gpushm::core
