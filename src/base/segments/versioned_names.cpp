// SPDX-License-Identifier: Apache-2.0
#include "base/segments/versioned_names.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/segments/names.hpp"
#include "base/text/text.hpp"
#include "gpushm/error.hpp"
#include "gpushm/types.hpp"

namespace gpushm::base {

namespace {

constexpr bool is_lower(char byte) noexcept {
  return byte >= 'a' && byte <= 'z';
}
constexpr bool is_digit(char byte) noexcept {
  return byte >= '0' && byte <= '9';
}

}  // namespace

bool is_alias(std::string_view alias) noexcept {
  return !alias.empty() && alias.size() <= max_alias_bytes && is_lower(alias.front()) &&
         std::all_of(alias.begin(), alias.end(), [](char byte) {
           return is_lower(byte) || is_digit(byte) || byte == '-';
         });
}

versioned_name parse_versioned_name(std::string_view operation, std::string_view name) {
  const auto fail = [&](const std::string& cause) {
    throw error(errc::invalid_argument,
                operation,
                {},
                cause,
                "write NAME@NUMBER or NAME@ALIAS, and /PART behind it for a part: w/llama@7, "
                "w/llama@latest/rank0");
  };
  if (name.size() > max_name_bytes) {
    fail("the name has " + std::to_string(name.size()) + " bytes, the limit is " +
         std::to_string(max_name_bytes));
  }
  const std::size_t at = name.find('@');
  versioned_name parsed;
  parsed.base = name.substr(0, at);
  check_name(operation, parsed.base);
  std::string_view selector = name.substr(at + 1);
  if (const std::size_t slash = selector.find('/'); slash != std::string_view::npos) {
    parsed.part = selector.substr(slash + 1);
    selector = selector.substr(0, slash);
    if (parsed.part.empty()) {
      fail("there is nothing behind the last \"/\"");
    }
    check_name(operation, parsed.part);
  }
  if (selector.empty()) {
    fail("there is nothing behind \"@\"");
  }
  if (is_digit(selector.front())) {
    const auto number = base::number<std::uint64_t>(selector);
    if (!number || selector.front() == '0' || *number > max_version_number) {
      fail("a version is a number from 1 to 9007199254740992 without leading zeros");
    }
    parsed.number = *number;
  } else if (is_alias(selector)) {
    parsed.alias = selector;
  } else {
    fail("an alias is a lower-case letter and up to 31 lower-case letters, digits and hyphens");
  }
  return parsed;
}

void check_segment_name(std::string_view operation, std::string_view name) {
  if (is_versioned_name(name)) {
    static_cast<void>(parse_versioned_name(operation, name));
  } else {
    check_name(operation, name);
  }
}

char* write_text(char* target, const versioned_name& name) noexcept {
  const auto add = [&](std::string_view text) {
    target = std::copy(text.begin(), text.end(), target);
  };
  add(name.base);
  *target++ = '@';
  if (name.alias.empty()) {
    constexpr std::size_t digits = std::numeric_limits<std::uint64_t>::digits10 + 1;
    target = std::to_chars(target, target + digits, name.number).ptr;
  } else {
    add(name.alias);
  }
  if (!name.part.empty()) {
    *target++ = '/';
    add(name.part);
  }
  return target;
}

std::string text_of(const versioned_name& name) {
  constexpr std::size_t others = 23;
  std::string text(name.base.size() + name.alias.size() + name.part.size() + others, '\0');
  text.resize(static_cast<std::size_t>(write_text(text.data(), name) - text.data()));
  return text;
}

}  // namespace gpushm::base
