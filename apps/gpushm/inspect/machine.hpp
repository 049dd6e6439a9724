// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "inspect/facts/facts.hpp"

namespace gpushm::cli {

struct machine {
  inspect::facts facts;
  nlohmann::json recording;  ///< what `--from` takes
  nlohmann::json document;   ///< what `--from` was given, whole; null: this machine
};

/// What the driver says, asked in another process. Blocks for `timeout` at most (and a second, when
/// the driver does not let go of a process that is killed); a crash or silence is the answer's
/// `failure`. Says on standard error that it waits, after two seconds. Never throws.
[[nodiscard]] inspect::driver_view ask_driver(std::chrono::milliseconds timeout);

/// What is known of this machine, or, when `from` is not empty, of the one recorded in that file
/// ("-": standard input). Waits for the driver's answer for `driver_timeout` at most. Throws
/// `error` (invalid_argument) when the file is no recording.
[[nodiscard]] machine look_at_machine(const std::string& from,
                                      std::chrono::milliseconds driver_timeout,
                                      const inspect::gather_options& options = {});

}  // namespace gpushm::cli
