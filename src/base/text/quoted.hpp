// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gpushm::base {

/// Appends `text` in double quotes, so that JSON and YAML parsers return it unchanged. Escapes
/// control characters, YAML's line breaks, and characters that YAML readers reject. Bytes that are
/// not UTF-8 become U+FFFD.
void append_quoted(std::string& out, std::string_view text);

/// The same for a message: long text is truncated.
[[nodiscard]] std::string in_quotes(std::string_view text);

}  // namespace gpushm::base
