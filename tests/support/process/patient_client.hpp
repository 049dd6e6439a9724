// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "gpushm/client.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm_testing {

/// A client of a broker that may not listen yet. Its own timeouts are scaled as the tests' are:
/// those of the product are not, and instrumented programs on a busy machine pass them.
[[nodiscard]] inline gpushm::client patient_client(const std::string& socket_path) {
  using std::chrono::seconds;
  return gpushm::client::connect({.socket_path = socket_path,
                                  .timeout = scaled_timeout(seconds(60)),
                                  .request_limit = scaled_timeout(seconds(60))});
}

}  // namespace gpushm_testing
