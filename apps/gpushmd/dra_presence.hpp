// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>

namespace gpushm::agent {

/// Tells a kubelet without DRA, which never asks for a DRA driver, from one that has not asked yet:
/// by the device plugin's resources, which every kubelet registers.
///
/// Distinct objects: safe. Shared objects: unsafe.
class dra_presence {
 public:
  using time_point = std::chrono::steady_clock::time_point;
  /// A kubelet that has DRA asks within seconds.
  static constexpr std::chrono::seconds patience{30};

  /// What is registered now. True: this kubelet has no DRA.
  bool is_missing(bool resources_registered, bool driver_registered, time_point now) {
    if (driver_registered) {
      seen_ = true;
    }
    if (!resources_registered || driver_registered) {
      since_.reset();
    } else if (!since_) {
      since_ = now;
    }
    // One that asked once has DRA, and is to ask again.
    return !seen_ && since_ && now - *since_ >= patience;
  }

 private:
  bool seen_ = false;
  std::optional<time_point> since_;
};

}  // namespace gpushm::agent
