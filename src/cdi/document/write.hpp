// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cdi/document/document.hpp"

namespace gpushm::cdi {

enum class format { yaml, json };

/// The document as text that ends with a line feed; `parse` gives an equal document back.
[[nodiscard]] std::string to_text(const document& content, format as);

/// The lowest version of the specification that has all that the document uses ("0.3.0").
[[nodiscard]] std::string_view minimum_version(const document& content);

/// Sets the version, and drops what that version does not have yet; returns a line about each thing
/// dropped. Throws `error` (invalid_argument) for an unknown version, and when what would have to
/// go cannot (names that begin with a digit, a class with a dot); then nothing is changed.
std::vector<std::string> lower_to(document& content, std::string_view version);

/// Writes the file by rename, with mode 0644; makes its directory (0755) when there is none. Throws
/// `error`; then the file is as it was.
void write_file(const document& content, const std::string& path, format as);

}  // namespace gpushm::cdi
