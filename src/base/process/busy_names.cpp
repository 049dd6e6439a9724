// SPDX-License-Identifier: Apache-2.0
#include "base/process/busy_names.hpp"

namespace gpushm::base {

busy_names::hold busy_names::take(const std::string& name,
                                  std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  if (!ended_.wait_until(lock, deadline, [&] { return !held_.contains(name); })) {
    return {};
  }
  return hold(&*held_.insert(name).first, end_of_hold{this});
}

void busy_names::end_of_hold::operator()(const std::string* name) const noexcept {
  const std::lock_guard lock(of->mutex_);
  of->held_.erase(of->held_.find(*name));
  // With the mutex: a caller that takes the name next may destroy the object.
  of->ended_.notify_all();
}

}  // namespace gpushm::base
