// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "kubernetes/api_client/connection.hpp"

namespace gpushm::api_client {

/// Idle connections for later requests. Few, because an agent rarely sends concurrent requests.
///
/// Thread-safety: shared objects: safe.
class connection_pool {
 public:
  static constexpr std::size_t max_idle = 2;

  connection_pool(const server_access& access, const client_options& options)
      : access_(access), options_(options) {}

  [[nodiscard]] std::unique_ptr<connection> take();
  void put(std::unique_ptr<connection> connection);

 private:
  const server_access& access_;
  const client_options& options_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<connection>> idle_;
};

}  // namespace gpushm::api_client
