// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>

namespace gpushm::agent {

/// Distinguishes a kubelet without DRA, which never registers a DRA driver, from one that has not
/// registered it yet, by the device plugin's resources, which every kubelet registers.
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class dra_presence {
 public:
  using time_point = std::chrono::steady_clock::time_point;
  /// A kubelet with DRA registers a driver within seconds.
  static constexpr std::chrono::seconds timeout{30};

  /// Records what is registered at `now`. Returns whether this kubelet has no DRA.
  bool is_missing(bool resources_registered, bool driver_registered, time_point now) {
    if (driver_registered) {
      seen_ = true;
    }
    if (!resources_registered || driver_registered) {
      since_.reset();
    } else if (!since_) {
      since_ = now;
    }
    // A kubelet that registered a driver once has DRA.
    return !seen_ && since_ && now - *since_ >= timeout;
  }

 private:
  bool seen_ = false;
  std::optional<time_point> since_;
};

}  // namespace gpushm::agent
