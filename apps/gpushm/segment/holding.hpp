// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>

#include "apps/support/stop_signal.hpp"
#include "gpushm/client.hpp"

namespace gpushm::cli {

/// Keeps what this command made until a signal comes, somebody removes it, or `timeout` is over.
/// Returns the exit status. Throws `error`: broker_gone.
[[nodiscard]] int hold(const segment& held,
                       const app::stop_signal& stop,
                       std::optional<std::chrono::milliseconds> timeout);

/// Keeps it until somebody opened it and the last who did is done, or a signal comes, or somebody
/// removes it. `events` are of its name, since before others could see it. Returns the exit status.
/// Throws `error`: broker_gone, timed_out.
[[nodiscard]] int wait_released(client& broker,
                                subscription& events,
                                const segment& held,
                                const app::stop_signal& stop,
                                std::optional<std::chrono::milliseconds> timeout);

}  // namespace gpushm::cli
