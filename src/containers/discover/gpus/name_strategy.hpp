// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gpushm::discover {

/// The form of device names: "0" and "1:0", the UUID, "gpu0" and "mig1:0".
enum class name_strategy { index, uuid, type_index };

[[nodiscard]] std::string_view to_string(name_strategy strategy);
[[nodiscard]] std::optional<name_strategy> parse_name_strategy(std::string_view text);

}  // namespace gpushm::discover
