// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "inspect/doctor/predict.hpp"
#include "inspect/facts/facts.hpp"

namespace gpushm::inspect {

/// What will happen when one process shares memory of one GPU and the other opens it.
struct peer_prediction {
  std::size_t gpu = 0;  ///< index of facts::gpus; not used for way::host
  bool to_peer = true;  ///< this process exports and the peer opens; else the other way round
  way how = way::host;
  prediction expected;
};

/// Both directions, each way, each GPU that either side may open; the host once. None without a
/// peer. Pure.
[[nodiscard]] std::vector<peer_prediction> compare_with_peer(const facts& all);

}  // namespace gpushm::inspect
