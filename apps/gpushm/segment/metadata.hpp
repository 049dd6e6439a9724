// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace gpushm::cli {

/// What `--metadata` gives: the text itself, or with "@FILE" what is in the file. Throws `error`:
/// message_too_large, permission_denied, system_error.
[[nodiscard]] std::string read_metadata(const std::string& argument);

}  // namespace gpushm::cli
