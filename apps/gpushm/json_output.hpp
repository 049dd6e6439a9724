// SPDX-License-Identifier: Apache-2.0
#pragma once

// Included by few files: the JSON library is large.

#include <nlohmann/json.hpp>
#include <optional>

#include "gpushm/error.hpp"
#include "gpushm/segment.hpp"
#include "gpushm/types.hpp"

namespace gpushm::cli {

/// Prints keys in the order in which they were added, as docs/cli.md shows them.
using json = nlohmann::ordered_json;

/// Prints a document as one line to standard output and flushes it. Bytes that are not UTF-8 become
/// U+FFFD.
void print_json(const json& document);

template <typename Value>
[[nodiscard]] json json_or_null(const std::optional<Value>& value) {
  return value ? json(*value) : json(nullptr);
}
[[nodiscard]] json to_json(const error& failure);
[[nodiscard]] json to_json(const device_id& device);
[[nodiscard]] json to_json(const segment_info& info);
/// A mapped segment, as `create` and `open` print it.
[[nodiscard]] json to_json(const segment& mapped);

}  // namespace gpushm::cli
