// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace gpushm::cli {

/// The value of `--metadata`: the text itself, or for "@FILE" the contents of the file. Throws
/// `error`: message_too_large, permission_denied, system_error.
[[nodiscard]] std::string read_metadata(const std::string& argument);

}  // namespace gpushm::cli
