// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "core/budget.hpp"

namespace gpushm::core {

/// The bucket of all processes of which only the process itself is known.
inline constexpr std::string_view unidentified_processes = "unidentified processes";

/// The party whose turns and queues a principal's work takes: the one that its usage is charged to,
/// so that forking gains nothing. Valid as long as `principal`.
[[nodiscard]] inline std::string_view scheduling_key(const principal& principal) noexcept {
  return principal.vouched_for ? std::string_view(principal.key) : unidentified_processes;
}

}  // namespace gpushm::core
