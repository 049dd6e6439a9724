// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace gpushm::cli {

/// Runs `work` in a forked child and returns what it returned, so that a driver that hangs or goes
/// away takes no more than the child with it. To be called while the process has one thread. Blocks
/// until the child is done, at most `timeout` (then it is killed). Throws the `error` that `work`
/// threw, and `error` (timed_out, driver_error) when the child did not come to an end or crashed.
[[nodiscard]] std::string run_in_child(const std::function<std::string()>& work,
                                       std::chrono::milliseconds timeout);

}  // namespace gpushm::cli
