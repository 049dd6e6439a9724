// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <csignal>
#include <optional>

#include "domains/serve/domain_set.hpp"
#include "succession/descriptor_store/descriptor_store.hpp"

namespace gpushm::app {

/// Blocks until one of these signals, which are blocked in all threads, arrives. Meanwhile reports
/// to the keeper (`keeper::watchdog_timeout`; empty: it does not watch this process), three times
/// in that time, but only if each domain's event loop has gone round since the last report. Throws
/// std::bad_alloc only.
void report_until(const sigset_t& stop,
                  std::optional<std::chrono::microseconds> timeout,
                  keeper::descriptor_store& keeper,
                  const domains::domain_set& domains);

}  // namespace gpushm::app
