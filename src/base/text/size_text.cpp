// SPDX-License-Identifier: Apache-2.0
#include "base/text/size_text.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/text/text.hpp"

namespace gpushm::base {

namespace {

struct unit {
  std::string_view name;
  std::uint64_t bytes;
};

__extension__ using wide = unsigned __int128;

// In any case.
constexpr std::array<unit, 10> binary_units{{{"", 1},
                                             {"b", 1},
                                             {"k", 1ULL << 10U},
                                             {"kib", 1ULL << 10U},
                                             {"m", 1ULL << 20U},
                                             {"mib", 1ULL << 20U},
                                             {"g", 1ULL << 30U},
                                             {"gib", 1ULL << 30U},
                                             {"t", 1ULL << 40U},
                                             {"tib", 1ULL << 40U}}};
// Only as they are written here: "64mb" beside "64m" would be a surprise.
constexpr std::array<unit, 5> decimal_units{{{"kB", 1'000},
                                             {"KB", 1'000},
                                             {"MB", 1'000'000},
                                             {"GB", 1'000'000'000},
                                             {"TB", 1'000'000'000'000}}};

/// The bytes of the unit `name`; nullopt if it is not one.
std::optional<std::uint64_t> unit_bytes(std::string_view name) {
  for (const unit& each : decimal_units) {
    if (each.name == name) {
      return each.bytes;
    }
  }
  const std::string lower = lower_case(name);
  for (const unit& each : binary_units) {
    if (each.name == lower) {
      return each.bytes;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> parse_size(std::string_view text) {
  // Digits are collected as an integer with a scale, so that floating-point rounding cannot change
  // a size.
  wide digits = 0;
  std::uint64_t scale = 1;
  bool any = false;
  bool point = false;
  std::size_t i = 0;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.' && !point) {
      point = true;
    } else if (c >= '0' && c <= '9') {
      if (digits > (static_cast<wide>(1) << 80U) || scale > 1'000'000'000'000ULL) {
        return std::nullopt;
      }
      digits = digits * 10 + static_cast<unsigned>(c - '0');
      scale *= point ? 10 : 1;
      any = true;
    } else {
      break;
    }
  }
  if (!any) {
    return std::nullopt;
  }
  if (i < text.size() && text[i] == ' ') {
    ++i;
  }
  const auto bytes = unit_bytes(text.substr(i));
  if (!bytes || digits > (static_cast<wide>(1) << 80U)) {
    return std::nullopt;
  }
  const wide scaled = digits * *bytes;
  if (scaled % scale != 0 || scaled / scale > UINT64_MAX) {
    return std::nullopt;
  }
  return static_cast<std::uint64_t>(scaled / scale);
}

std::string size_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> names{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t index = 0;
  constexpr double reads_1024 = 1023.995;  // rounds to 1024 with two decimals
  while (value >= reads_1024 && index + 1 < names.size()) {
    value /= 1024.0;
    ++index;
  }
  std::array<char, 32> number{};
  std::snprintf(number.data(), number.size(), "%.2f", value);
  std::string text = number.data();
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') {
    text.pop_back();
  }
  return text + " " + names[index];
}

}  // namespace gpushm::base
