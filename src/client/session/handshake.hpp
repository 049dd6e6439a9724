// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>

#include "base/files/file.hpp"
#include "base/files/guarded_fd.hpp"
#include "base/process/deadline.hpp"
#include "client/session/subject.hpp"
#include "gpushm/client.hpp"
#include "protocol/wire/messages.hpp"
#include "protocol/wire/state_table.hpp"

namespace gpushm::client_detail {

/// Retry interval after the kernel refused descriptors. No event reports when it accepts them.
inline constexpr std::chrono::milliseconds inflight_poll{2};

/// The result of connecting.
struct handshake {
  base::guarded_fd requests;  ///< the request lane
  base::guarded_fd events;    ///< the event lane
  wire::welcome welcome;
  broker_info info;
  base::unique_mapping table;
  wire::state_table_view view;  ///< view of `table`
  bool has_sent_request = false;
};

/// Connects, sends the hello with the descriptors of the fence, and receives the welcome. Blocks
/// for at most `timeout`. If the broker closes the connection without a reply, it may have been
/// killed and have a successor: connects again, for at most `wire::longest_pause`. `resume`:
/// token of a session whose leases are requested; zeros: none. `request`: a packet that is sent
/// after the hello, without waiting for the welcome; empty: none. Throws broker_unreachable,
/// permission_denied, unsupported_version, too_many_connections, too_many_descriptors, timed_out,
/// protocol_error.
[[nodiscard]] handshake shake_hands(const std::string& path,
                                    std::chrono::milliseconds timeout,
                                    const wire::session_token& resume,
                                    std::span<const std::byte> request = {});

/// Maps a state table that the broker has sent, for reading. Throws protocol_error, out_of_memory.
[[nodiscard]] base::unique_mapping map_table(int file, const subject& about);

}  // namespace gpushm::client_detail
