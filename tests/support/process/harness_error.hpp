// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace gpushm_testing {

/// The test set-up failed, or a process did not reach in time the state that the test waits for.
class harness_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace gpushm_testing
