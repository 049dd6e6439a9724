// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gpushm::app {

enum class log_format : std::uint8_t { text, json };

}  // namespace gpushm::app
