// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "gpushm/error.hpp"
#include "protocol/wire/messages.hpp"

namespace gpushm::client_detail {

/// The operation and object named in error messages.
struct subject {
  std::string_view operation;
  std::string_view object;
};

/// Returns the error for a reply that does not match its request.
[[nodiscard]] error unexpected_reply(const subject& about);
/// Converts a broker's `Failure` about `about`.
[[nodiscard]] error from_wire(const wire::failure& failure, const subject& about);

/// Returns the error for a wait whose stop token was requested to stop.
[[nodiscard]] error cancelled(const subject& about);

}  // namespace gpushm::client_detail
