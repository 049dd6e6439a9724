// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "kubernetes/device_plugin/configuration/configuration.hpp"

namespace gpushm::device_plugin {

/// Devices on the same hardware: the replicas of a GPU or instance, or the instances of a GPU.
struct device_group {
  std::size_t total = 0;                ///< number of devices, available or not
  std::vector<std::size_t> candidates;  ///< ordinals, ascending
};

/// Returns `count` of the candidates, chosen one by one: distributed, from the group with the
/// smallest fraction in use; packed, from the group with candidates that has the largest fraction
/// in use. Devices that are not candidates count as in use. Ties between and within groups go to
/// the first. Precondition: there are enough candidates.
[[nodiscard]] std::vector<std::size_t> choose_replicas(const std::vector<device_group>& groups,
                                                       replica_policy policy,
                                                       std::size_t count);

}  // namespace gpushm::device_plugin
