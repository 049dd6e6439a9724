// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/gpushm/demo/demo_arguments.hpp"

namespace gpushm::cli {

/// `gpushm demo --channel`.
[[nodiscard]] int run_channel_demo(const demo_arguments& arguments);

}  // namespace gpushm::cli
