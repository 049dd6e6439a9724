// SPDX-License-Identifier: Apache-2.0
#include "weights/table_scan.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "weights/dtype.hpp"

namespace gpushm::weights {

namespace {

/// As the general parser refuses more.
constexpr std::size_t most_dimensions = 64;
/// All numbers of as many digits fit into 64 bits.
constexpr std::size_t max_digits = 19;
constexpr std::size_t hash_digits = 16;

/// A place in a text. Each function returns false, or nothing, if something else is there.
class scanner {
 public:
  explicit scanner(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  [[nodiscard]] bool is_at_end() {
    skip_space();
    return at_ == end_;
  }
  [[nodiscard]] bool take(char wanted) {
    skip_space();
    if (at_ == end_ || *at_ != wanted) {
      return false;
    }
    ++at_;
    return true;
  }
  [[nodiscard]] std::optional<std::string_view> text() {
    if (!take('"')) {
      return std::nullopt;
    }
    const char* const begin = at_;
    while (at_ != end_ && *at_ >= ' ' && *at_ <= '~' && *at_ != '"' && *at_ != '\\') {
      ++at_;
    }
    const std::string_view found(begin, static_cast<std::size_t>(at_ - begin));
    return take_here('"') ? std::optional(found) : std::nullopt;
  }
  [[nodiscard]] std::optional<std::uint64_t> number() {
    skip_space();
    const char* const begin = at_;
    std::uint64_t value = 0;
    while (at_ != end_ && *at_ >= '0' && *at_ <= '9' &&
           static_cast<std::size_t>(at_ - begin) < max_digits) {
      value = value * 10 + static_cast<std::uint64_t>(*at_++ - '0');
    }
    const auto digits = at_ - begin;
    // What follows a number is checked by the caller: a comma or a bracket.
    if (digits == 0 || (digits > 1 && *begin == '0')) {
      return std::nullopt;
    }
    return value;
  }
  /// Calls `item` for each one between brackets.
  template <typename Item>
  [[nodiscard]] bool list(char open, char close, Item&& item) {
    if (!take(open)) {
      return false;
    }
    if (take(close)) {
      return true;
    }
    do {
      if (!item()) {
        return false;
      }
    } while (take(','));
    return take(close);
  }

 private:
  void skip_space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) {
      ++at_;
    }
  }
  [[nodiscard]] bool take_here(char wanted) {
    if (at_ == end_ || *at_ != wanted) {
      return false;
    }
    ++at_;
    return true;
  }

  const char* at_;
  const char* end_;
};

template <typename Number>
bool scan_numbers(scanner& from, std::vector<Number>& to) {
  return from.list('[', ']', [&] {
    const auto number = from.number();
    if (!number || to.size() == most_dimensions || !std::in_range<Number>(*number)) {
      return false;
    }
    to.push_back(static_cast<Number>(*number));
    return true;
  });
}

bool scan_offsets(scanner& from, tensor& to) {
  if (!from.take('[')) {
    return false;
  }
  const auto begin = from.number();
  const bool has_comma = begin && from.take(',');
  const auto end = has_comma ? from.number() : std::nullopt;
  if (!end || !from.take(']')) {
    return false;
  }
  to.begin = *begin;
  to.end = *end;
  return true;
}

bool scan_hash(scanner& from, tensor& to) {
  const auto text = from.text();
  if (!text || text->size() != hash_digits ||
      text->find_first_not_of("0123456789abcdef") != std::string_view::npos) {
    return false;
  }
  to.hash = *text;
  return true;
}

/// The fields of a tensor, each a bit.
struct field_bits {
  static constexpr unsigned type = 1;
  static constexpr unsigned shape = 2;
  static constexpr unsigned offsets = 4;
  static constexpr unsigned strides = 8;
  static constexpr unsigned hash = 16;
  static constexpr unsigned framework = 32;
};

/// Returns the field; 0: it is not one.
unsigned scan_field(scanner& from, tensor& to) {
  const auto key = from.text();
  if (!key || !from.take(':')) {
    return 0;
  }
  if (*key == "dtype") {
    const auto name = from.text();
    const auto known = name ? find_dtype(*name) : std::nullopt;
    to.type = known.value_or(dtype());
    return known ? field_bits::type : 0;
  }
  if (*key == "shape") {
    return scan_numbers(from, to.shape) ? field_bits::shape : 0;
  }
  if (*key == "data_offsets") {
    return scan_offsets(from, to) ? field_bits::offsets : 0;
  }
  if (*key == "strides") {
    return scan_numbers(from, to.strides) ? field_bits::strides : 0;
  }
  if (*key == "hash") {
    return scan_hash(from, to) ? field_bits::hash : 0;
  }
  if (*key == "framework_dtype") {
    const auto name = from.text();
    to.framework_dtype = name.value_or(std::string_view());
    return name ? field_bits::framework : 0;
  }
  return 0;
}

bool scan_tensor(scanner& from, std::string_view name, tensors& to) {
  tensor one;
  one.name = name;
  unsigned seen = 0;
  const bool is_known = from.list('{', '}', [&] {
    const unsigned now = scan_field(from, one);
    const bool is_new = now != 0 && (seen & now) == 0;
    seen |= now;
    return is_new;
  });
  constexpr unsigned required = field_bits::type | field_bits::shape | field_bits::offsets;
  if (!is_known || (seen & required) != required ||
      ((seen & field_bits::strides) != 0 && one.strides.size() != one.shape.size())) {
    return false;
  }
  to.all.push_back(std::move(one));
  return true;
}

bool scan_metadata(scanner& from, text_pairs& to) {
  std::unordered_set<std::string_view> names;
  return from.list('{', '}', [&] {
    const auto name = from.text();
    const bool has_colon = name && names.insert(*name).second && from.take(':');
    const auto value = has_colon ? from.text() : std::nullopt;
    if (!value) {
      return false;
    }
    to.emplace_back(*name, *value);
    return true;
  });
}

}  // namespace

std::optional<tensors> scan_table(std::string_view text) {
  constexpr std::size_t shortest_entry = 64;
  scanner from(text);
  tensors result;
  std::unordered_set<std::string_view> names;
  names.reserve(text.size() / shortest_entry);
  const bool is_known = from.list('{', '}', [&] {
    const auto name = from.text();
    if (!name || !names.insert(*name).second || !from.take(':')) {
      return false;
    }
    return *name == "__metadata__" ? scan_metadata(from, result.metadata)
                                   : scan_tensor(from, *name, result);
  });
  return is_known && from.is_at_end() ? std::optional(std::move(result)) : std::nullopt;
}

}  // namespace gpushm::weights
