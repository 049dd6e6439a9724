// SPDX-License-Identifier: Apache-2.0
#pragma once

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
};

}  // namespace gpushm::domains
