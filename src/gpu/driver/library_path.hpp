// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace gpushm::driver {

/// The file of a library that dlopen returned, with links resolved; empty if unknown.
[[nodiscard]] std::string path_of_library(void* library);

}  // namespace gpushm::driver
