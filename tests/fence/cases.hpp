// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/fence/watcher.hpp"

namespace gpushm::fence_rounds {

/// Every measured kind of death, short ones first.
[[nodiscard]] std::vector<setting> all_settings();

}  // namespace gpushm::fence_rounds
