// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "gpushm/tensors.hpp"

namespace gpushm::cli {

/// The slices of `NAME=DIM:BEGIN-END[,BEGIN-END...][/PARTS]`: ranges of one dimension, in their
/// order. NAME may have `=`. Returns nullopt for any other text, and for an empty range.
///
/// Thread-safety: safe.
[[nodiscard]] std::optional<std::vector<tensor_slice>> parse_slices(std::string_view text);

}  // namespace gpushm::cli
