// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "inspect/facts.hpp"

namespace gpushm::cli {

struct machine {
  inspect::facts facts;
  nlohmann::json recording;  ///< what `--from` takes
};

/// What is known of this machine, or, when `from` is not empty, of the one recorded in that file
/// ("-": standard input). Asks the driver in another process, at most 1.5 s. Throws `error` when
/// the file is no recording.
[[nodiscard]] machine look_at_machine(const std::string& from,
                                      const inspect::gather_options& options = {});

}  // namespace gpushm::cli
