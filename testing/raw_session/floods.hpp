// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "testing/process/deadline.hpp"

namespace gpushm_testing {

/// A way to keep a broker busy, as one hostile process does it.
struct flood {
  std::string_view name;
  std::string_view what;
  /// Sets up what it needs, then floods until `until`. A broker that refuses is not an error: the
  /// flood goes on with what it was given. Runs in a process of its own, which is killed when it
  /// does not return.
  void (*run)(const std::string& socket_path, clock::time_point until);
};

/// All of them, in the order of docs/threat-model.md's kinds: requests, answers, descriptors,
/// memory, connections, processes.
[[nodiscard]] std::span<const flood> floods();

/// The one with this name; null when there is none.
[[nodiscard]] const flood* find_flood(std::string_view name);

}  // namespace gpushm_testing
