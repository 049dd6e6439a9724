// SPDX-License-Identifier: Apache-2.0
#pragma once

// Small parsers for text from other sources, mainly kernel files, and functions that make such text
// safe to print. Pure.

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::base {

[[nodiscard]] inline std::string_view trim(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  const std::size_t first = text.find_first_not_of(blanks);
  return first == std::string_view::npos
             ? std::string_view()
             : text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

/// Letters of ASCII, in any locale; other characters are unchanged.
[[nodiscard]] constexpr char to_lower(char c) noexcept {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
[[nodiscard]] constexpr char to_upper(char c) noexcept {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}
[[nodiscard]] inline std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), to_lower);
  return lower;
}

/// Whether `name` is `domain` ("nvidia.com") or below it ("k8s.gpu.nvidia.com").
[[nodiscard]] constexpr bool is_in_domain(std::string_view name, std::string_view domain) {
  return name.ends_with(domain) &&
         (name.size() == domain.size() || name[name.size() - domain.size() - 1] == '.');
}

/// Omits empty parts.
[[nodiscard]] inline std::vector<std::string_view> split(std::string_view text,
                                                         std::string_view separators) {
  std::vector<std::string_view> parts;
  std::size_t start = 0;
  while (start < text.size()) {
    const std::size_t end = std::min(text.find_first_of(separators, start), text.size());
    if (end > start) {
      parts.push_back(text.substr(start, end - start));
    }
    start = end + 1;
  }
  return parts;
}

[[nodiscard]] inline std::vector<std::string_view> lines_of(std::string_view text) {
  return split(text, "\n");
}

/// The value of a line "NAME:   value"; nullopt if there is no such line.
[[nodiscard]] inline std::optional<std::string_view> field(std::string_view text,
                                                           std::string_view name) {
  for (const std::string_view line : lines_of(text)) {
    if (line.starts_with(name) && line.substr(name.size()).starts_with(':')) {
      return trim(line.substr(name.size() + 1));
    }
  }
  return std::nullopt;
}

/// All of `text` as a number; nullopt if it is not one.
template <typename Value>
[[nodiscard]] std::optional<Value> number(std::string_view text, int base = 10) {
  Value value{};
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return failed == std::errc() && end == text.data() + text.size() && !text.empty()
             ? std::optional(value)
             : std::nullopt;
}

/// The first word that looks like "580.159.04" or "12.4".
[[nodiscard]] inline std::string first_version(std::string_view text) {
  for (const std::string_view word : split(text, " \t\n\",:")) {
    if (word.find('.') != std::string_view::npos &&
        word.find_first_not_of("0123456789.") == std::string_view::npos && word.front() != '.') {
      return std::string(word);
    }
  }
  return {};
}

struct character {
  char32_t value = 0;
  std::size_t length = 0;  ///< bytes; 0: they are not well-formed UTF-8
};

/// The first character of `text`, which must not be empty. UTF-8 as defined by RFC 3629: no
/// surrogates, no overlong forms, nothing above U+10FFFF.
[[nodiscard]] character first_character(std::string_view text) noexcept;

/// Whether a character controls the terminal or is invisible: C0 and C1 controls and DEL, line
/// and paragraph separators, marks that change the direction of writing, zero-width and other
/// default-ignorable characters (the byte order mark, the soft hyphen, variation selectors, tags),
/// interlinear annotations, noncharacters.
[[nodiscard]] bool is_control_or_invisible(char32_t value) noexcept;

/// `text` made safe for a terminal, a log or a table cell: each character that
/// `is_control_or_invisible`, including line feed and tab, becomes `\xNN` (below U+0080), `\uNNNN`
/// or `\UNNNNNNNN`; each byte that is not UTF-8 becomes `\xNN`. Everything else is unchanged,
/// including backslashes, so that text without such characters is printed unchanged; the result is
/// meant to be read by people, not parsed back. The result is UTF-8 and one line.
///
/// All text from a peer, a file or the command line that is displayed must pass through this once,
/// at the latest where it is printed. JSON does its own escaping.
[[nodiscard]] std::string printable(std::string_view text);

/// The same, but keeps line feeds: for text with intended line breaks.
[[nodiscard]] std::string printable_lines(std::string_view text);

/// The directory of an absolute path: "/a/b/c" → "/a/b".
[[nodiscard]] std::string_view directory_of(std::string_view path);
/// The last part of a path: "/a/b/c" → "c".
[[nodiscard]] std::string_view name_of(std::string_view path);

}  // namespace gpushm::base
