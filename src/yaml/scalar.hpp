// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "yaml/tree.hpp"

namespace gpushm::yaml {

/// What a scalar means; the first is null.
using scalar_value =
    std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string>;

/// By the rules of the reference's parser: YAML 1.1 with its y, n, on and off, and numbers as Go
/// writes them. Nothing when the node has a tag that its text does not fit, or one that no field of
/// a document can have.
[[nodiscard]] std::optional<yaml::scalar_value> value_of(const yaml::node& scalar);

/// Whether a plain text would be taken for something else than a text.
[[nodiscard]] bool looks_like_no_text(std::string_view plain);

/// As text, the way the reference turns numbers and booleans into texts where those are wanted:
/// 1e3 is "1000". Null is "".
[[nodiscard]] std::string as_text(const yaml::scalar_value& value);

/// "a number", "a text".
[[nodiscard]] std::string_view kind_of(const yaml::scalar_value& value);

}  // namespace gpushm::yaml
