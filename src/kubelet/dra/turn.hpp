// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "kubelet/dra/claims.hpp"

namespace gpushm::dra {

/// Blocks until no other call uses the claim; exclusive access during its lifetime. Distinct
/// objects: safe.
class claims::turn {
 public:
  turn(claims& of, std::string uid) : of_(of), uid_(std::move(uid)) {
    std::unique_lock lock(of_.mutex_);
    of_.turn_over_.wait(lock, [this] { return !of_.busy_.contains(uid_); });
    of_.busy_.insert(uid_);
  }
  turn(const turn&) = delete;
  turn& operator=(const turn&) = delete;
  ~turn() {
    {
      const std::lock_guard lock(of_.mutex_);
      of_.busy_.erase(uid_);
    }
    of_.turn_over_.notify_all();
  }

 private:
  claims& of_;
  const std::string uid_;
};

}  // namespace gpushm::dra
