// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "inspect/facts/facts.hpp"

namespace gpushm::cli {

struct machine {
  inspect::facts facts;
  nlohmann::json recording;  ///< the document for `--from`
  nlohmann::json document;   ///< the whole document of `--from`; null: this machine
};

/// Queries the driver in another process. Blocks for at most `timeout` (plus a second if a killed
/// process hangs in the driver); a crash or timeout is returned in `failure`. After two seconds,
/// prints a note on standard error. Does not throw.
[[nodiscard]] inspect::driver_view ask_driver(std::chrono::milliseconds timeout);

/// What is known of this machine, or, when `from` is not empty, of the one recorded in that file
/// ("-": standard input). Waits for the driver's answer for `driver_timeout` at most. Throws
/// `error` (invalid_argument) when the file is no recording.
[[nodiscard]] machine look_at_machine(const std::string& from,
                                      std::chrono::milliseconds driver_timeout,
                                      const inspect::gather_options& options = {});

}  // namespace gpushm::cli
