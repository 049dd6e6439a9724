// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "gpushm/broker.hpp"

namespace gpushm::domains {

/// The state of gpushm-brokerd's keeper, as a domain has detected it. Never renumber.
enum class keeper_state : std::uint8_t {
  unknown = 0,  ///< an earlier version, or no keeper is used
  reads = 1,
  slow = 2,  ///< it does not read: what must be stored waits, and is then refused
  full = 3,  ///< it has not stored something: that is lost with the broker
  gone = 4,  ///< the broker has no successor
};
/// The label of a metric; "unknown" for later values.
[[nodiscard]] constexpr const char* to_string(keeper_state state) noexcept {
  switch (state) {
    case keeper_state::reads:
      return "reads";
    case keeper_state::slow:
      return "slow";
    case keeper_state::full:
      return "full";
    case keeper_state::gone:
      return "gone";
    case keeper_state::unknown:
      break;
  }
  return "unknown";
}

/// A domain of the node, and what its broker counts.
struct reading {
  std::string domain;
  bool serving = false;  ///< new clients can connect
  bool open = false;     ///< false: only its directory is left
  std::string problem;   ///< why it is not served as it should be; empty: none
  broker_statistics counted = {};
  std::uint64_t handed_back = 0;  ///< segments, after the broker was lost with its keeper
  std::uint64_t lost = 0;         ///< persistent segments that nobody handed back
  keeper_state keeper = keeper_state::unknown;
  std::uint64_t freeing_bytes = 0;  ///< of removed segments, in use until their files are closed
};

}  // namespace gpushm::domains
