// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "inspect/doctor/predict.hpp"
#include "inspect/facts/facts.hpp"

namespace gpushm::inspect {

/// The predicted result when one process shares memory of a GPU and the other opens it.
struct peer_prediction {
  std::size_t gpu = 0;  ///< index in facts::gpus; ignored for way::host
  bool to_peer = true;  ///< this process exports and the peer opens; false: the reverse
  way how = way::host;
  prediction expected;
};

/// Returns both directions, each way, each GPU that either side may open; way::host once. Empty
/// without a peer. Pure.
[[nodiscard]] std::vector<peer_prediction> compare_with_peer(const facts& facts);

}  // namespace gpushm::inspect
