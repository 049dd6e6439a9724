// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/json_output.hpp"
#include "domains/protocol/usage.hpp"

namespace gpushm::cli {

/// For an answer of gpushm-brokerd on its private socket.
inline constexpr std::chrono::milliseconds operator_timeout{15'000};

/// "45s", "12m", "7h", "3d".
[[nodiscard]] std::string age_text(std::chrono::milliseconds age);
/// Bytes as a size, other resources as a number.
[[nodiscard]] std::string amount_text(const domains::usage& row, std::uint64_t amount);
[[nodiscard]] json to_json(const domains::usage& row);

/// `gpushm ls --by principal`.
[[nodiscard]] int run_list_by_principal(const list_arguments& arguments);
/// `gpushm rm --unheld`.
[[nodiscard]] int run_remove_unheld(const remove_arguments& arguments);
/// `gpushm stat --broker`.
[[nodiscard]] int run_broker_stat(const stat_arguments& arguments);

}  // namespace gpushm::cli
