// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "testing/process/deadline.hpp"

namespace gpushm_testing {

/// One packet, sent over and over on several connections by one thread.
struct pump_options {
  std::vector<std::byte> packet;
  unsigned connections = 1;
  /// Descriptors of /dev/null with each packet.
  unsigned descriptors = 0;
  /// False: answers stay unread.
  bool reads = true;
  /// Without descriptors.
  bool on_event_lane = false;
  /// Packets on each connection, at most.
  std::uint64_t packets_each = std::numeric_limits<std::uint64_t>::max();
};

struct pump_counts {
  std::uint64_t sent = 0;
  std::uint64_t answers = 0;
  std::uint64_t connections = 0;  ///< made in all: the broker drops some
};

/// Sends as fast as the broker takes it, on greeted connections that are made again when the broker
/// drops them, until `until`. A broker that refuses connections is asked again.
pump_counts pump(const std::string& socket_path,
                 const pump_options& options,
                 clock::time_point until);

/// What a connection does in `connect_storm` before it is closed.
enum class storm_kind : unsigned char { silent, hello, garbage };

/// Connects and closes as fast as it can, until `until`. Returns how many connections it made.
std::uint64_t connect_storm(const std::string& socket_path,
                            storm_kind kind,
                            clock::time_point until);

}  // namespace gpushm_testing
