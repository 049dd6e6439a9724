// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "containers/cdi/document/document.hpp"

namespace gpushm::cli {

/// Describes the changes in `now` for a log line: "driver 550.54.15 became 570.86.10", "added: 0:1;
/// removed: 0". Not empty when the documents differ.
[[nodiscard]] std::string why_different(const cdi::document& before, const cdi::document& now);

}  // namespace gpushm::cli
