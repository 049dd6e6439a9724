// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "base/deadline.hpp"
#include "base/file.hpp"
#include "base/guarded_fd.hpp"
#include "gpushm/client.hpp"
#include "wire/messages.hpp"
#include "wire/state_table.hpp"

namespace gpushm::detail {

/// How often the kernel is asked again to take descriptors that it has refused. There is no event
/// for it.
inline constexpr std::chrono::milliseconds inflight_poll{2};

/// What a broker gives to a new client.
struct handshake {
  base::guarded_fd requests;  ///< the request lane
  base::guarded_fd events;    ///< the event lane
  wire::welcome welcome;
  broker_info info;
  base::unique_mapping table;
  wire::state_table_view view;  ///< of `table`
};

/// Connects, sends the hello with what shows the end of this process, and receives the welcome.
/// Blocks for `timeout` at most. `resume`: of a session whose leases are asked for; zeros: none.
/// Throws broker_unreachable, permission_denied, unsupported_version, too_many_connections,
/// too_many_descriptors, timed_out, protocol_error.
[[nodiscard]] handshake shake_hands(const std::string& path,
                                    std::chrono::milliseconds timeout,
                                    const wire::session_token& resume);

}  // namespace gpushm::detail
