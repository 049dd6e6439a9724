// SPDX-License-Identifier: Apache-2.0
#include "containers/yaml/scalar.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "base/text/text.hpp"

namespace gpushm::yaml {

namespace {

constexpr std::string_view tag_prefix = "tag:yaml.org,2002:";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Keywords: booleans, null, NaN and infinity.
std::optional<yaml::scalar_value> keyword(std::string_view text) {
  constexpr std::array<std::string_view, 11> yes{
      "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"};
  constexpr std::array<std::string_view, 11> no{
      "n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"};
  constexpr std::array<std::string_view, 5> null{"", "~", "null", "Null", "NULL"};
  constexpr std::array<std::string_view, 3> nan{".nan", ".NaN", ".NAN"};
  constexpr std::array<std::string_view, 3> infinite{".inf", ".Inf", ".INF"};
  const auto among = [](std::string_view word, const auto& words) {
    for (const std::string_view each : words) {
      if (each == word) {
        return true;
      }
    }
    return false;
  };
  if (text.size() > 5) {
    return std::nullopt;
  }
  if (among(text, yes)) {
    return true;
  }
  if (among(text, no)) {
    return false;
  }
  if (among(text, null)) {
    return yaml::scalar_value();
  }
  if (among(text, nan)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const bool minus = text.front() == '-';
  if (among(minus || text.front() == '+' ? text.substr(1) : text, infinite)) {
    return minus ? -std::numeric_limits<double>::infinity()
                 : std::numeric_limits<double>::infinity();
  }
  return std::nullopt;
}

/// Digits with Go's prefixes 0x, 0o, 0b and 0. Empty when it is not a number or does not fit.
std::optional<std::uint64_t> magnitude(std::string_view digits) {
  int base = 10;
  if (digits.size() > 1 && digits.front() == '0') {
    const char mark = static_cast<char>(digits[1] | 0x20);
    const bool marked = digits.size() > 2 && (mark == 'x' || mark == 'o' || mark == 'b');
    base = !marked ? 8 : mark == 'x' ? 16 : mark == 'o' ? 8 : 2;
    digits.remove_prefix(marked ? 2 : 1);
  }
  return base::number<std::uint64_t>(digits, base);
}

std::optional<yaml::scalar_value> integer(std::string_view text) {
  const bool minus = text.front() == '-';
  const bool sign = minus || text.front() == '+';
  const auto size = magnitude(sign ? text.substr(1) : text);
  if (!size) {
    return std::nullopt;
  }
  constexpr auto largest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (minus) {
    if (*size > largest + 1) {
      return std::nullopt;
    }
    return static_cast<std::int64_t>(0 - *size);
  }
  if (*size <= largest) {
    return static_cast<std::int64_t>(*size);
  }
  // Go parses a number that does not fit again as unsigned.
  return sign ? std::nullopt : std::optional<yaml::scalar_value>(*size);
}

bool is_float(std::string_view text) {
  std::size_t at = text.front() == '-' || text.front() == '+' ? 1 : 0;
  const auto digits = [&text, &at] {
    const std::size_t start = at;
    while (at < text.size() && is_digit(text[at])) {
      ++at;
    }
    return at - start;
  };
  const std::size_t whole = digits();
  if (at < text.size() && text[at] == '.') {
    ++at;
    if (digits() == 0 && whole == 0) {
      return false;
    }
  } else if (whole == 0) {
    return false;
  }
  if (at < text.size() && (text[at] | 0x20) == 'e') {
    ++at;
    if (at < text.size() && (text[at] == '-' || text[at] == '+')) {
      ++at;
    }
    if (digits() == 0) {
      return false;
    }
  }
  return at == text.size();
}

std::optional<yaml::scalar_value> floating(std::string_view text) {
  if (!is_float(text)) {
    return std::nullopt;
  }
  const std::string_view digits = text.front() == '+' ? text.substr(1) : text;
  double value = 0;
  const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (failed == std::errc::result_out_of_range) {
    // An underflow is zero; an overflow is not a number.
    const std::size_t exponent = digits.find_first_of("eE");
    const bool small = exponent != std::string_view::npos && digits[exponent + 1] == '-';
    return small ? std::optional<yaml::scalar_value>(0.0) : std::nullopt;
  }
  return failed == std::errc() ? std::optional<yaml::scalar_value>(value) : std::nullopt;
}

/// "0b-101", which the fallback of Go's parser accepts.
std::optional<yaml::scalar_value> signed_binary(std::string_view text) {
  if (!text.starts_with("0b") || text.size() < 4 || (text[2] != '-' && text[2] != '+')) {
    return std::nullopt;
  }
  const auto size = base::number<std::int64_t>(text.substr(3), 2);
  if (!size || !is_digit(text[3])) {
    return std::nullopt;
  }
  return text[2] == '-' ? -*size : *size;
}

std::optional<yaml::scalar_value> number(std::string_view text) {
  if (text.front() == '.') {
    return floating(text);
  }
  std::string plain;
  for (const char c : text) {
    if (c != '_') {
      plain += c;
    }
  }
  if (auto found = integer(plain)) {
    return found;
  }
  if (auto found = floating(plain)) {
    return found;
  }
  return signed_binary(plain);
}

yaml::scalar_value plain_value(std::string_view text) {
  if (auto found = keyword(text)) {
    return *found;
  }
  const char first = text.front();
  if (is_digit(first) || first == '-' || first == '+' || first == '.') {
    if (auto found = number(text)) {
      return *found;
    }
  }
  return std::string(text);
}

/// Go's %g of a float32 with the shortest exact digits.
std::string shortest(double number) {
  if (std::isnan(number)) {
    return "NaN";
  }
  if (std::abs(number) > static_cast<double>(std::numeric_limits<float>::max())) {
    return number < 0 ? "-Inf" : "+Inf";
  }
  const auto value = static_cast<float>(number);
  const float size = std::abs(value);
  const bool fixed = size == 0.0F || (size >= 1e-4F && size < 1e6F);
  std::array<char, 64> buffer{};
  const auto written =
      std::to_chars(buffer.data(),
                    buffer.data() + buffer.size(),
                    value,
                    fixed ? std::chars_format::fixed : std::chars_format::scientific);
  return {buffer.data(), written.ptr};
}

}  // namespace

std::optional<yaml::scalar_value> value_of(const yaml::node& scalar) {
  const std::string_view tag = scalar.tag;
  if (tag.empty()) {
    return scalar.plain ? plain_value(scalar.value) : yaml::scalar_value(scalar.value);
  }
  if (!tag.starts_with(tag_prefix)) {
    return scalar.value;
  }
  const std::string_view name = tag.substr(tag_prefix.size());
  if (name == "binary" || name == "timestamp") {
    return std::nullopt;
  }
  if (name != "bool" && name != "int" && name != "float" && name != "null") {
    return scalar.value;
  }
  const yaml::scalar_value looks = plain_value(scalar.value);
  if (name == "float" && std::holds_alternative<std::int64_t>(looks)) {
    return static_cast<double>(std::get<std::int64_t>(looks));
  }
  const bool fits = name == "bool"    ? std::holds_alternative<bool>(looks)
                    : name == "float" ? std::holds_alternative<double>(looks)
                    : name == "null"  ? std::holds_alternative<std::monostate>(looks)
                                      : std::holds_alternative<std::int64_t>(looks) ||
                                           std::holds_alternative<std::uint64_t>(looks);
  return fits ? std::optional(looks) : std::nullopt;
}

bool parses_as_other_type(std::string_view plain) {
  return !std::holds_alternative<std::string>(plain_value(plain));
}

std::string as_text(const yaml::scalar_value& value) {
  struct {
    std::string operator()(std::monostate) const { return {}; }
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(std::int64_t number) const { return std::to_string(number); }
    std::string operator()(std::uint64_t number) const { return std::to_string(number); }
    std::string operator()(double number) const { return shortest(number); }
    std::string operator()(const std::string& text) const { return text; }
  } write;
  return std::visit(write, value);
}

std::string_view kind_of(const yaml::scalar_value& value) {
  constexpr std::array<std::string_view, 6> kinds{
      "null", "a boolean", "a number", "a number", "a number", "a string"};
  return kinds.at(value.index());
}

}  // namespace gpushm::yaml
