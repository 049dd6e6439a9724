// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "tests/support/process/deadline.hpp"

namespace gpushm_testing {

/// One way for a hostile process to keep a broker busy.
struct flood {
  std::string_view name;
  std::string_view what;
  /// Does its set-up, then floods until `until`. A refusal by the broker is not an error: the flood
  /// continues with the resources that it got. Runs in a separate process, which is killed if it
  /// does not return.
  void (*run)(const std::string& socket_path, clock::time_point until);
};

/// All floods, in the order of the kinds in docs/threat-model.md: requests, replies, descriptors,
/// memory, connections, processes.
[[nodiscard]] std::span<const flood> floods();

/// The flood with this name; null when there is none.
[[nodiscard]] const flood* find_flood(std::string_view name);

}  // namespace gpushm_testing
