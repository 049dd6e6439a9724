// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "containers/cdi/document/document.hpp"

namespace gpushm::cdi {

enum class format { yaml, json };

/// The document as text that ends with a line feed; `parse` returns an equal document.
[[nodiscard]] std::string to_text(const document& content, format format);

/// The lowest version of the specification that has all that the document uses ("0.3.0").
[[nodiscard]] std::string_view minimum_version(const document& content);

/// Sets the version and drops the fields that it does not have; returns a line for each. Throws
/// `error` (invalid_argument) for an unknown version, and for incompatible content that cannot be
/// dropped (names that begin with a digit, a class with a dot); `content` is then unchanged.
std::vector<std::string> lower_to(document& content, std::string_view version);

/// Writes the file by rename, with mode 0644; creates its directory (0755) if missing. Throws
/// `error`; the file is then unchanged.
void write_file(const document& content, const std::string& path, format format);

}  // namespace gpushm::cdi
