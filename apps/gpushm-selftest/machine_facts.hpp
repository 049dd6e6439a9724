// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/gpushm-selftest/check.hpp"

namespace gpushm::selftest {

/// Describes the machine on which the results were measured. Loads the driver; a broken driver may
/// hang or crash, so call this in an expendable process.
[[nodiscard]] json machine_facts();

}  // namespace gpushm::selftest
