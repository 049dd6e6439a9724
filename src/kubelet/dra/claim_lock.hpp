// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "kubelet/dra/claims.hpp"

namespace gpushm::dra {

/// Gives exclusive access to a claim during its lifetime. The constructor blocks until no other
/// call uses the claim. Thread-safety: distinct objects: safe.
class claims::claim_lock {
 public:
  claim_lock(claims& of, std::string uid) : of_(of), uid_(std::move(uid)) {
    std::unique_lock lock(of_.mutex_);
    of_.released_.wait(lock, [this] { return !of_.busy_.contains(uid_); });
    of_.busy_.insert(uid_);
  }
  claim_lock(const claim_lock&) = delete;
  claim_lock& operator=(const claim_lock&) = delete;
  ~claim_lock() {
    {
      const std::lock_guard lock(of_.mutex_);
      of_.busy_.erase(uid_);
    }
    of_.released_.notify_all();
  }

 private:
  claims& of_;
  const std::string uid_;
};

}  // namespace gpushm::dra
