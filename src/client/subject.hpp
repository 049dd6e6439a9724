// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "gpushm/error.hpp"
#include "wire/messages.hpp"

namespace gpushm::detail {

/// Who an error is told about.
struct subject {
  std::string_view operation;
  std::string_view object;
};

/// The error for an answer that does not belong to its request.
[[nodiscard]] error unexpected_answer(const subject& about);
/// What a broker's `Failure` says of `about`.
[[nodiscard]] error from_wire(const wire::failure& failure, const subject& about);

/// For a wait whose stop token was asked to stop.
[[nodiscard]] error cancelled(const subject& about);

}  // namespace gpushm::detail
