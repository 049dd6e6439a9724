// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/gpushm-selftest/check.hpp"

namespace gpushm::selftest {

/// Runs `one`, which is repeatable, `times` times, `jobs` at once. Passed when none failed; a
/// failed outcome has every failure's run number in `data` and what the first ones printed in
/// `output`. Begins no further run after a stop signal.
[[nodiscard]] outcome run_repeatedly(const check& one,
                                     int times,
                                     int jobs,
                                     std::chrono::milliseconds limit);

}  // namespace gpushm::selftest
