// SPDX-License-Identifier: Apache-2.0
#include "containers/yaml/reader.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/text/quoted.hpp"
#include "containers/yaml/scalar.hpp"

namespace gpushm::yaml {

namespace {

using shape = yaml::node::shape;

std::string_view name_of(shape is) {
  return is == shape::mapping ? "a mapping" : is == shape::sequence ? "a list" : "a value";
}

/// Field names are case-insensitive. Folds them as Go's JSON decoder does, including the long s and
/// the Kelvin sign.
std::string folded(std::string_view key) {
  std::string out;
  for (std::size_t at = 0; at < key.size(); ++at) {
    if (key.substr(at).starts_with("\u017F")) {
      out += 's';
      ++at;
    } else if (key.substr(at).starts_with("\u212A")) {
      out += 'k';
      at += 2;
    } else {
      const char c = key[at];
      out += c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
    }
  }
  return out;
}

std::string list_of(std::span<const std::string_view> names) {
  std::string out;
  for (const std::string_view name : names) {
    out.append(out.empty() ? "" : ", ").append(name);
  }
  return out;
}

bool is_merge(const yaml::node& key) {
  return key.alias_of == nullptr && key.is == shape::scalar && key.value == "<<" &&
         (key.plain || key.tag == "tag:yaml.org,2002:merge");
}

}  // namespace

void reader::report(const yaml::node& where, std::string rule, std::string text) {
  if (full()) {
    return;
  }
  if (problems_.size() == max_problems) {
    rule = "too-many-problems";
    text = "too many problems; fix the ones above first";
  }
  problems_.push_back({file_, where.line, where.column, std::move(rule), std::move(text)});
}

void reader::mismatch(const yaml::node& node, std::string_view key, std::string_view expected) {
  const yaml::node& target = followed(node);
  std::string text = fmt::format("{} must be {}, not ", key, expected);
  if (target.is != shape::scalar) {
    text += name_of(target.is);
  } else if (const auto value = value_of(target)) {
    text.append(kind_of(*value));
    if (value->index() != 0) {
      text += fmt::format(" ({})", base::in_quotes(target.value));
    }
  } else {
    report(node,
           "tag",
           fmt::format("the tag of {} does not match its value; remove the tag",
                       base::in_quotes(target.value)));
    return;
  }
  report(node, "type", std::move(text));
}

bool reader::is_null(const yaml::node& node) {
  const yaml::node& target = followed(node);
  if (target.is != shape::scalar) {
    return false;
  }
  const auto value = value_of(target);
  return value && value->index() == 0;
}

bool reader::read(const yaml::node& node, std::string_view key, std::string& out) {
  const yaml::node& target = followed(node);
  const auto value = target.is == shape::scalar ? value_of(target) : std::nullopt;
  if (!value) {
    mismatch(node, key, "a string");
    return false;
  }
  if (value->index() != 0) {
    out = as_text(*value);
  }
  return true;
}

bool reader::read(const yaml::node& node, std::string_view key, bool& out) {
  const yaml::node& target = followed(node);
  const auto value = target.is == shape::scalar ? value_of(target) : std::nullopt;
  if (value && value->index() == 0) {
    return true;
  }
  if (!value || !std::holds_alternative<bool>(*value)) {
    mismatch(node, key, "true or false");
    return false;
  }
  out = std::get<bool>(*value);
  return true;
}

std::optional<std::int64_t> reader::integer(const yaml::node& node,
                                            std::string_view key,
                                            std::int64_t min_value,
                                            std::int64_t max_value) {
  const yaml::node& target = followed(node);
  const auto value = target.is == shape::scalar ? value_of(target) : std::nullopt;
  if (value && value->index() == 0) {
    return 0;
  }
  std::optional<std::int64_t> result;
  bool out_of_range = false;
  if (value && std::holds_alternative<std::int64_t>(*value)) {
    result = std::get<std::int64_t>(*value);
  } else if (value && std::holds_alternative<std::uint64_t>(*value)) {
    out_of_range = true;
  } else if (value && std::holds_alternative<double>(*value)) {
    // Integers may be written as 195.0.
    const double number = std::get<double>(*value);
    if (std::isfinite(number) && std::trunc(number) == number) {
      constexpr double limit = 9223372036854775808.0;
      out_of_range = number < -limit || number >= limit || (min_value == 0 && std::signbit(number));
      result = out_of_range ? std::nullopt : std::optional(static_cast<std::int64_t>(number));
    }
  }
  if (out_of_range || (result && (*result < min_value || *result > max_value))) {
    report(node,
           "range",
           fmt::format("{} must be from {} to {}, not {}",
                       key,
                       min_value,
                       max_value,
                       base::in_quotes(target.value)));
    return std::nullopt;
  }
  if (!result) {
    mismatch(node, key, "an integer");
  }
  return result;
}

bool reader::read(const yaml::node& node, std::string_view key, std::int64_t& out) {
  const auto value = integer(node,
                             key,
                             std::numeric_limits<std::int64_t>::min(),
                             std::numeric_limits<std::int64_t>::max());
  out = value.value_or(out);
  return value.has_value();
}

bool reader::read(const yaml::node& node, std::string_view key, std::uint32_t& out) {
  const auto value = integer(node, key, 0, std::numeric_limits<std::uint32_t>::max());
  out = value ? static_cast<std::uint32_t>(*value) : out;
  return value.has_value();
}

std::span<const yaml::node* const> reader::elements(const yaml::node& node, std::string_view key) {
  const yaml::node& target = followed(node);
  if (target.is == shape::sequence) {
    return target.children;
  }
  if (!is_null(node)) {
    mismatch(node, key, "a list");
  }
  return {};
}

bool reader::entries_expected(const yaml::node& node, std::string_view key) {
  const bool is = followed(node).is == shape::mapping;
  if (!is) {
    mismatch(node, key, "a mapping");
  }
  return is;
}

std::vector<yaml::entry> reader::entries(const yaml::node& node, std::string_view key) {
  std::vector<yaml::entry> entries;
  const yaml::node& target = followed(node);
  if (target.is == shape::mapping) {
    collect(target, entries);
    drop_duplicates(entries);
  } else if (!is_null(node)) {
    mismatch(node, key, "a mapping");
  }
  return entries;
}

void reader::collect(const yaml::node& mapping, std::vector<yaml::entry>& entries) {
  for (std::size_t at = 0; at + 1 < mapping.children.size(); at += 2) {
    const yaml::node& key = *mapping.children[at];
    const yaml::node& value = *mapping.children[at + 1];
    if (is_merge(key)) {
      merge(value, entries);
      continue;
    }
    const yaml::node& target = followed(key);
    const auto name = target.is == shape::scalar ? value_of(target) : std::nullopt;
    if (!name || name->index() == 0) {
      report(key, "key", "a key must be a string");
    } else {
      entries.push_back({as_text(*name), &key, &value});
    }
  }
}

void reader::merge(const yaml::node& value, std::vector<yaml::entry>& entries) {
  const auto one = [this, &entries](const yaml::node& node) {
    const yaml::node& target = followed(node);
    if (target.is == shape::mapping) {
      collect(target, entries);
    } else {
      report(node, "merge", "the value of << must be a mapping");
    }
  };
  if (value.alias_of == nullptr && value.is == shape::sequence) {
    for (const yaml::node* each : value.children) {
      one(*each);
    }
  } else {
    one(value);
  }
}

void reader::drop_duplicates(std::vector<yaml::entry>& entries) {
  std::vector<std::size_t> order(entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&entries](std::size_t a, std::size_t b) {
    return entries[a].key < entries[b].key;
  });
  for (std::size_t at = 1; at < order.size(); ++at) {
    yaml::entry& again = entries[order[at]];
    const yaml::entry& first = entries[order[at - 1]];
    if (again.key == first.key && full()) {
      again.value = nullptr;
    } else if (again.key == first.key) {
      report(*again.key_node,
             "duplicate-key",
             fmt::format("{} is duplicated, first in line {}; remove one",
                         base::in_quotes(again.key),
                         first.key_node->line));
      again.value = nullptr;
    }
  }
  std::erase_if(entries, [](const yaml::entry& each) { return each.value == nullptr; });
}

std::vector<yaml::reader::field> reader::fields(const yaml::node& node,
                                                std::string_view field_name,
                                                std::span<const std::string_view> names) {
  std::vector<field> fields;
  for (const yaml::entry& each : entries(node, field_name)) {
    auto name = std::find(names.begin(), names.end(), each.key);
    if (full()) {
      break;
    }
    if (name == names.end()) {
      const std::string key = folded(each.key);
      name = std::find_if(names.begin(), names.end(), [&key](std::string_view known) {
        return folded(known) == key;
      });
    }
    if (name == names.end()) {
      report(*each.key_node,
             "unknown-field",
             fmt::format("{} has no field {}; remove it or correct its name ({})",
                         field_name,
                         base::in_quotes(each.key),
                         list_of(names)));
      continue;
    }
    const auto index = static_cast<std::size_t>(name - names.begin());
    const auto same = std::find_if(
        fields.begin(), fields.end(), [index](const field& field) { return field.index == index; });
    if (same != fields.end()) {
      report(*each.key_node,
             "duplicate-key",
             fmt::format("{} repeats the field {} of line {}; remove one",
                         base::in_quotes(each.key),
                         *name,
                         same->key->line));
      continue;
    }
    fields.push_back({index, each.key_node, each.value});
  }
  return fields;
}

}  // namespace gpushm::yaml
