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

/// Queries the driver in a child process. Blocks for at most `timeout` (plus a second if a killed
/// child hangs in the driver); returns a crash or timeout in `failure`. After two seconds, prints a
/// note on standard error. Does not throw.
[[nodiscard]] inspect::driver_view probe_driver(std::chrono::milliseconds timeout);

/// Returns the facts about this machine or, if `path` is not empty, about the machine recorded in
/// that file ("-": standard input). Waits for the driver for at most `driver_timeout`. Throws
/// `error` (invalid_argument) if the file is not a recording.
[[nodiscard]] machine gather_machine(const std::string& path,
                                     std::chrono::milliseconds driver_timeout,
                                     const inspect::gather_options& options = {});

}  // namespace gpushm::cli
