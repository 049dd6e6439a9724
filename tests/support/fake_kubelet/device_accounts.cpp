// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_kubelet/device_accounts.hpp"

#include <algorithm>

namespace gpushm_testing {

void device_accounts::mark_all_unhealthy() {
  for (auto& each : devices_) {
    each.healthy = false;
  }
}

std::vector<std::string> device_accounts::available() const {
  std::vector<std::string> ids;
  for (const auto& each : devices_) {
    if (each.healthy && owner_of_.find(each.id) == owner_of_.end()) {
      ids.push_back(each.id);
    }
  }
  return ids;
}

std::vector<std::string> device_accounts::take(const std::string& pod,
                                               const std::string& resource,
                                               std::size_t count,
                                               const std::vector<std::string>& preferred) {
  const std::vector<std::string> free = available();
  if (free.size() < count) {
    throw admission_error(std::string("requested number of devices unavailable for ")
                              .append(resource)
                              .append(". Requested: ")
                              .append(std::to_string(count))
                              .append(", Available: ")
                              .append(std::to_string(free.size())));
  }
  const std::set<std::string> allowed(free.begin(), free.end());
  std::vector<std::string> taken;
  const auto take_one = [&](const std::string& id) {
    if (taken.size() < count && allowed.count(id) != 0 && owner_of_.emplace(id, pod).second) {
      taken.push_back(id);
    }
  };
  std::for_each(preferred.begin(), preferred.end(), take_one);
  std::for_each(free.begin(), free.end(), take_one);
  return taken;
}

void device_accounts::release(const std::vector<std::string>& ids) {
  for (const std::string& id : ids) {
    owner_of_.erase(id);
  }
}

void device_accounts::release_all(const std::string& pod) {
  std::erase_if(owner_of_, [&](const auto& entry) { return entry.second == pod; });
}

}  // namespace gpushm_testing
