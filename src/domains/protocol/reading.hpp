// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "gpushm/broker.hpp"

namespace gpushm::domains {

/// A domain of the node, and what its broker counts.
struct reading {
  std::string domain;
  bool serving = false;  ///< new clients can connect
  bool open = false;     ///< false: only its directory is left
  std::string problem;   ///< why it is not served as it should be; empty: none
  broker_statistics counted = {};
  std::uint64_t handed_back = 0;  ///< segments, after the broker was lost with its keeper
  std::uint64_t lost = 0;         ///< persistent segments that nobody handed back
};

}  // namespace gpushm::domains
