// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "containers/yaml/tree.hpp"

namespace gpushm::yaml {

/// The value of a scalar; the first alternative is null.
using scalar_value =
    std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string>;

/// Follows the reference's parser: YAML 1.1 with its y, n, on and off, and numbers as Go writes
/// them. Empty when the node's tag does not match its text, or no field of a document can have that
/// tag.
[[nodiscard]] std::optional<yaml::scalar_value> value_of(const yaml::node& scalar);

/// Whether a plain scalar would be parsed as another type than a string.
[[nodiscard]] bool parses_as_other_type(std::string_view plain);

/// Converts to a string as the reference does for numbers and booleans in string fields: 1e3 is
/// "1000". Null is "".
[[nodiscard]] std::string as_text(const yaml::scalar_value& value);

/// "a number", "a string".
[[nodiscard]] std::string_view kind_of(const yaml::scalar_value& value);

}  // namespace gpushm::yaml
