// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/gpushm-selftest/check.hpp"

namespace gpushm::selftest {

/// Runs `check` `times` times, `jobs` concurrently; precondition: it is repeatable. Passes if no
/// run fails; otherwise `data` contains the run number of every failure and `output` the output of
/// the first ones. Starts no further run after a stop signal.
[[nodiscard]] outcome run_repeatedly(const check& check,
                                     int times,
                                     int jobs,
                                     std::chrono::milliseconds limit);

}  // namespace gpushm::selftest
