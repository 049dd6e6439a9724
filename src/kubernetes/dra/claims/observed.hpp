// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string_view>

#include "base/report/operations.hpp"
#include "gpushm/error.hpp"

namespace gpushm::dra {

/// Reports an operation to the observer, if any, when it ends. Thread-safety: distinct objects:
/// safe.
class observed {
 public:
  observed(base::operation_observer* observer, std::string_view operation)
      : observer_(observer), operation_(operation) {}
  observed(const observed&) = delete;
  observed& operator=(const observed&) = delete;
  ~observed() {
    if (observer_ != nullptr) {
      observer_->finished("dra", operation_, outcome_, std::chrono::steady_clock::now() - began_);
    }
  }

  void failed(const error& failure) noexcept { outcome_ = to_string(failure.code()); }

 private:
  base::operation_observer* observer_;
  std::string_view operation_;  ///< a literal
  std::string_view outcome_ = "ok";
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace gpushm::dra
