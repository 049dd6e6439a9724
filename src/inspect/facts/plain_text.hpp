// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gpushm::inspect {

/// Columns that UTF-8 text takes, one a character: wide characters are not known here.
[[nodiscard]] std::size_t width(std::string_view text) noexcept;

/// `text` broken at blanks into lines of at most `columns` characters, each after `indent` blanks
/// and ended by a line feed; line feeds in `text` stay. A word that does not fit has a line of its
/// own: commands must stay whole.
[[nodiscard]] std::string wrapped(std::string_view text,
                                  std::size_t indent,
                                  std::size_t columns = 100);

}  // namespace gpushm::inspect
