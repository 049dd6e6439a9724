// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "gpushm/client.hpp"
#include "gpushm/export.hpp"

namespace gpushm::base {

/// Hands a line to the sink that `gpushm::set_log_sink` installed; nothing when there is none.
/// Never throws. Thread-safe.
GPUSHM_API void log(log_level level, std::string_view text) noexcept;

}  // namespace gpushm::base
