// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/gpushm/commands.hpp"

namespace gpushm::cli {

/// Does something with each segment of `names`, and says `done` of those that worked and why of the
/// others. Returns the exit status. Throws `error` when the broker is gone.
[[nodiscard]] int for_each_name(const connection_arguments& connection,
                                const std::vector<std::string>& names,
                                const std::string& done,
                                const std::function<void(client&, const std::string&)>& act);

}  // namespace gpushm::cli
