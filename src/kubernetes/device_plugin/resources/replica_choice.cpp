// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/resources/replica_choice.hpp"

#include <cstdint>

namespace gpushm::device_plugin {

namespace {

struct level {
  std::uint64_t used = 0;
  std::uint64_t total = 1;
  std::size_t next = 0;  ///< of the group's candidates
};

// Whether a smaller fraction of `a` than of `b` is in use.
bool less_used(const level& a, const level& b) {
  return a.used * b.total < b.used * a.total;
}

}  // namespace

std::vector<std::size_t> choose_replicas(const std::vector<device_group>& groups,
                                         replica_policy policy,
                                         std::size_t count) {
  std::vector<level> levels;
  levels.reserve(groups.size());
  for (const device_group& each : groups) {
    levels.push_back({each.total - each.candidates.size(), each.total, 0});
  }
  std::vector<std::size_t> chosen;
  chosen.reserve(count);
  while (chosen.size() < count) {
    std::size_t best = groups.size();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (levels[i].next == groups[i].candidates.size()) {
        continue;
      }
      if (best == groups.size() ||
          (policy == replica_policy::distributed ? less_used(levels[i], levels[best])
                                                 : less_used(levels[best], levels[i]))) {
        best = i;
      }
    }
    chosen.push_back(groups[best].candidates[levels[best].next++]);
    ++levels[best].used;
  }
  return chosen;
}

}  // namespace gpushm::device_plugin
