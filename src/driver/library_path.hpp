// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace gpushm::driver {

/// The file behind what dlopen returned, links resolved; empty when it cannot be told.
[[nodiscard]] std::string path_of_library(void* library);

}  // namespace gpushm::driver
