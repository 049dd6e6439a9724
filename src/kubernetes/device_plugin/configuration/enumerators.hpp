// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kubernetes/device_plugin/configuration/configuration.hpp"

namespace gpushm::device_plugin {

// Enumerators of settings, for the file reader; nullopt if `text` is not one of them.
[[nodiscard]] std::optional<mig_strategy> mig_strategy_of(std::string_view text);
[[nodiscard]] std::optional<device_id_strategy> device_id_strategy_of(std::string_view text);
[[nodiscard]] std::optional<device_list_strategy> device_list_strategy_of(std::string_view text);
// "none, single or mixed"
[[nodiscard]] std::string mig_choice();
[[nodiscard]] std::string device_id_choice();
[[nodiscard]] std::string device_list_choice();

}  // namespace gpushm::device_plugin
