// SPDX-License-Identifier: Apache-2.0
#include "base/segments/registered_names.hpp"

#include "base/text/text.hpp"

namespace gpushm::base {

std::string registered_name(std::uint32_t number) {
  return std::string(registered_prefix) + std::to_string(number);
}

std::optional<std::uint32_t> registered_number(std::string_view name) noexcept {
  if (!is_registered_name(name)) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(registered_prefix.size());
  const auto number = base::number<std::uint32_t>(digits);
  return number && digits.front() != '0' && *number < registered_numbers ? number : std::nullopt;
}

}  // namespace gpushm::base
