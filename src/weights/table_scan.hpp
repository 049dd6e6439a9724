// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "weights/tensor.hpp"

namespace gpushm::weights {

/// Reads a table that is written as gpushm, safetensors and Python's json write one: known fields,
/// texts of printable ASCII without escapes, numbers of digits. A process that attaches a model
/// reads it each time, and a general parser of JSON takes as long for it as the driver for the
/// mapping. The tensors are in the order of the text. Returns nothing for any other text, also for
/// one that is not valid: the general parser reads it then, or says what is wrong.
[[nodiscard]] std::optional<tensors> scan_table(std::string_view text);

}  // namespace gpushm::weights
