// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>

#include "apps/support/stop_signal.hpp"
#include "gpushm/client.hpp"

namespace gpushm::cli {

/// Blocks until a signal arrives, a client removes the segment, or `timeout` expires. Returns the
/// exit status. Throws `error`: broker_gone.
[[nodiscard]] int hold(const segment& held,
                       const app::stop_signal& stop,
                       std::optional<std::chrono::milliseconds> timeout);

/// Blocks until other processes have opened the segment and the last one has released it, a signal
/// arrives, or a client removes it. Precondition: `events` were subscribed for its name before it
/// was published. Returns the exit status. Throws `error`: broker_gone, timed_out.
[[nodiscard]] int wait_released(client& broker,
                                subscription& events,
                                const segment& held,
                                const app::stop_signal& stop,
                                std::optional<std::chrono::milliseconds> timeout);

}  // namespace gpushm::cli
