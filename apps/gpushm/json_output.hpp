// SPDX-License-Identifier: Apache-2.0
#pragma once

// Included by few files: the JSON library is large.

#include <nlohmann/json.hpp>
#include <optional>

#include "gpushm/error.hpp"
#include "gpushm/segment.hpp"
#include "gpushm/types.hpp"

namespace gpushm::cli {

/// Keeps the order in which keys were added: what docs/cli.md shows is what is printed.
using json = nlohmann::ordered_json;

/// One document on one line of standard output, written out at once. Bytes that are not UTF-8
/// become U+FFFD.
void print_json(const json& document);

template <typename Value>
[[nodiscard]] json json_or_null(const std::optional<Value>& value) {
  return value ? json(*value) : json(nullptr);
}
[[nodiscard]] json to_json(const error& failure);
[[nodiscard]] json to_json(const segment_info& info);
/// A mapped segment, as `create` and `open` show it.
[[nodiscard]] json to_json(const segment& mapped);

}  // namespace gpushm::cli
