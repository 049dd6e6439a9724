// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "apps/gpushm/options.hpp"
#include "gpushm/client.hpp"

namespace gpushm::cli {

/// From here on the library's warnings are written to standard error.
void print_warnings();

/// Calls `print_warnings` and connects. Waits for a broker for at most `connect_timeout`, by
/// default `wait`. Throws what `client::connect` throws.
[[nodiscard]] client connect(const connection_arguments& arguments,
                             std::chrono::milliseconds wait = std::chrono::milliseconds(0));

}  // namespace gpushm::cli
