// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gpushm::base {

/// Appends `text` in double quotes, so that JSON and YAML read the same back: escaped is what
/// either does not take as it is (control characters, YAML's line breaks, what its readers refuse).
/// Bytes that are not UTF-8 become U+FFFD.
void append_quoted(std::string& out, std::string_view text);

/// The same for a message: what is too long is cut.
[[nodiscard]] std::string in_quotes(std::string_view text);

}  // namespace gpushm::base
