// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace gpushm::cli {

/// Runs `work` in a forked child and returns its result, so that a driver that hangs or is unloaded
/// affects only the child. Precondition: the process has one thread. Blocks until the child exits,
/// at most `timeout` (then kills it). Throws the `error` that `work` threw, and `error` (timed_out,
/// driver_error) when the child timed out or crashed.
[[nodiscard]] std::string run_in_child(const std::function<std::string()>& work,
                                       std::chrono::milliseconds timeout);

}  // namespace gpushm::cli
