// SPDX-License-Identifier: Apache-2.0
#include "base/segments/registered_names.hpp"

#include <charconv>

namespace gpushm::base {

std::string registered_name(std::uint32_t number) {
  return std::string(registered_prefix) + std::to_string(number);
}

std::optional<std::uint32_t> registered_number(std::string_view name) noexcept {
  if (!is_registered_name(name)) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(registered_prefix.size());
  std::uint32_t number = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (failure != std::errc{} || end != digits.data() + digits.size() || digits.front() == '0' ||
      number >= registered_numbers) {
    return std::nullopt;
  }
  return number;
}

}  // namespace gpushm::base
