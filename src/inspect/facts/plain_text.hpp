// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gpushm::inspect {

/// Returns the columns of UTF-8 text, one per character; does not support wide characters.
[[nodiscard]] std::size_t width(std::string_view text) noexcept;

/// Wraps `text` at blanks into lines of at most `columns` characters, each indented by `indent`
/// blanks and ended by a line feed; keeps line feeds in `text`. A word that does not fit gets a
/// separate line, because commands must not be split.
[[nodiscard]] std::string wrapped(std::string_view text,
                                  std::size_t indent,
                                  std::size_t columns = 100);

}  // namespace gpushm::inspect
