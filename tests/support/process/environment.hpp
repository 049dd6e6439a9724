// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdlib>
#include <string>

namespace gpushm_testing {

/// The number in an environment variable, with which a longer run is asked for; not set:
/// `otherwise`. Throws std::invalid_argument, std::out_of_range.
template <std::integral Number>
[[nodiscard]] Number number_from_environment(const char* variable, Number otherwise) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread changes the environment
  const char* const wanted = std::getenv(variable);
  return wanted != nullptr ? static_cast<Number>(std::stoull(wanted)) : otherwise;
}

}  // namespace gpushm_testing
