// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/process/deadline.hpp"

namespace gpushm_testing {

/// One packet that one thread sends repeatedly on several connections.
struct pump_options {
  std::vector<std::byte> packet;
  unsigned connections = 1;
  /// Descriptors of /dev/null with each packet.
  unsigned descriptors = 0;
  /// Replies stay unread if false.
  bool reads = true;
  /// Without descriptors.
  bool on_event_lane = false;
  /// Upper bound of packets on each connection.
  std::uint64_t packets_each = std::numeric_limits<std::uint64_t>::max();
};

struct pump_counts {
  std::uint64_t sent = 0;
  std::uint64_t replies = 0;
  std::uint64_t connections = 0;  ///< total, including reconnects after drops
};

/// Sends as fast as the broker accepts it, on greeted connections that are reconnected when the
/// broker drops them, until `until`. Retries if the broker refuses connections.
pump_counts pump(const std::string& socket_path,
                 const pump_options& options,
                 clock::time_point until);

/// What a connection of `connect_storm` sends before it is closed.
enum class storm_kind : unsigned char { silent, hello, garbage };

/// Connects and closes as fast as possible until `until`. Returns the number of connections.
std::uint64_t connect_storm(const std::string& socket_path,
                            storm_kind kind,
                            clock::time_point until);

}  // namespace gpushm_testing
