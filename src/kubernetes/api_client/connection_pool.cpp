// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/api_client/connection_pool.hpp"

namespace gpushm::api_client {

std::unique_ptr<connection> connection_pool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto one = std::move(idle_.back());
      idle_.pop_back();
      return one;
    }
  }
  return std::make_unique<connection>(access_, options_);
}

void connection_pool::put(std::unique_ptr<connection> connection) {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < max_idle) {
    idle_.push_back(std::move(connection));
  }
}

}  // namespace gpushm::api_client
