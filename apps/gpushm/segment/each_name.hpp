// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/gpushm/options.hpp"
#include "gpushm/client.hpp"

namespace gpushm::cli {

/// Calls `act` for each of `names`; prints `done` ("removed") for those that succeeded and the
/// error for the others. Returns the exit status. Throws `error` if the broker is gone.
[[nodiscard]] int for_each_name(const connection_arguments& connection,
                                const std::vector<std::string>& names,
                                const std::string& done,
                                const std::function<void(client&, const std::string&)>& act);

}  // namespace gpushm::cli
