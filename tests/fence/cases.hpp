// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/fence/watcher.hpp"

namespace gpushm::fence_rounds {

/// Every kind of death that is measured, the short ones first.
[[nodiscard]] std::vector<setting> all_settings();

}  // namespace gpushm::fence_rounds
