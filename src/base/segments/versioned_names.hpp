// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gpushm::base {

/// The largest number of a version: exact in JSON, and as a double.
inline constexpr std::uint64_t max_version_number = std::uint64_t{1} << 53U;
inline constexpr std::size_t max_alias_bytes = 32;
/// The alias that refers to the highest published version. Part of the protocol.
inline constexpr std::string_view latest_alias = "latest";

/// A name that refers to a version (docs/adr/0046): `BASE@NUMBER` or `BASE@ALIAS`, each optionally
/// followed by `/PART`. Views into the parsed name, which has at most `max_name_bytes`.
struct versioned_name {
  std::string_view base;     ///< a valid segment name
  std::uint64_t number = 0;  ///< 1 to `max_version_number`; 0: by alias
  std::string_view alias;    ///< empty: by number
  std::string_view part;     ///< empty: the part without a name of its own
  friend bool operator==(const versioned_name&, const versioned_name&) = default;
};

[[nodiscard]] constexpr bool is_versioned_name(std::string_view name) noexcept {
  return name.find('@') != std::string_view::npos;
}

/// Whether `alias` can be the name of an alias: a lower-case letter, followed by lower-case
/// letters, digits and hyphens, at most `max_alias_bytes` in total.
[[nodiscard]] bool is_alias(std::string_view alias) noexcept;

/// Precondition: `is_versioned_name(name)`. Throws `errc::invalid_argument`, with `operation` and
/// the cause. Each versioned name has one text: `text_of` returns what was parsed.
[[nodiscard]] versioned_name parse_versioned_name(std::string_view operation,
                                                  std::string_view name);

/// The check of `check_name` or `parse_versioned_name`, whichever the name is for.
void check_segment_name(std::string_view operation, std::string_view name);

/// Precondition: the members are as `parse_versioned_name` returns them.
[[nodiscard]] std::string text_of(const versioned_name& name);
/// The same without an allocation: writes it to `target`, and returns its end. At most 23
/// characters more than those of `base`, `alias` and `part`.
char* write_text(char* target, const versioned_name& name) noexcept;

}  // namespace gpushm::base
