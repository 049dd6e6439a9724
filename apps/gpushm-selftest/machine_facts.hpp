// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/gpushm-selftest/check.hpp"

namespace gpushm::selftest {

/// What the results were measured on. Loads the driver, which may hang or crash where it is broken:
/// to be called in a process that can be given up.
[[nodiscard]] json machine_facts();

}  // namespace gpushm::selftest
