// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "kubelet/plugin/configuration/configuration.hpp"

namespace gpushm::plugin {

/// Devices that share something: the replicas of a GPU, the instances on a board.
struct device_group {
  std::size_t total = 0;                ///< devices there are, available or not
  std::vector<std::size_t> candidates;  ///< ordinals, ascending
};

/// Which `count` of the candidates to take, one after the other: distributed, from the group of
/// which the smallest part is in use; packed, from the one of which the largest part is, that still
/// has some. What is neither available nor given counts as in use. Of equal groups, and within one,
/// the first. There are enough candidates.
[[nodiscard]] std::vector<std::size_t> choose_replicas(const std::vector<device_group>& groups,
                                                       replica_policy policy,
                                                       std::size_t count);

}  // namespace gpushm::plugin
