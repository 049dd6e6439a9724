// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gpushm::base {

/// What the names of registered descriptors begin with; no other segment's name does. Part of the
/// protocol.
inline constexpr std::string_view registered_prefix = ".fd/";
/// The first name after all of them, in the order of bytes.
inline constexpr std::string_view after_registered_names = ".fd0";
/// Their numbers are below this, and not 0.
inline constexpr std::uint32_t registered_numbers = std::uint32_t{1} << 30U;

[[nodiscard]] constexpr bool is_registered_name(std::string_view name) noexcept {
  return name.starts_with(registered_prefix);
}

/// Precondition: 0 < `number` < `registered_numbers`.
[[nodiscard]] std::string registered_name(std::uint32_t number);

/// Returns nullopt unless the name is `registered_name` of a number.
[[nodiscard]] std::optional<std::uint32_t> registered_number(std::string_view name) noexcept;

/// Whether lists and events of names with `prefix` include `name`. Registered descriptors are only
/// for those who name their prefix: a program may have thousands.
[[nodiscard]] constexpr bool is_shown(std::string_view name, std::string_view prefix) noexcept {
  return name.starts_with(prefix) &&
         (prefix.size() >= registered_prefix.size() || !is_registered_name(name));
}

}  // namespace gpushm::base
