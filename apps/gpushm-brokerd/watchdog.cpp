// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-brokerd/watchdog.hpp"

#include <chrono>
#include <ctime>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "base/report/log.hpp"

namespace gpushm::app {

namespace {

using rounds = std::vector<domains::domain_set::round>;

void report(keeper::descriptor_store& keeper) noexcept {
  try {
    keeper.alive();
  } catch (const std::exception& why) {
    base::log(log_level::debug, why.what());  // without a keeper, the broker continues
  }
}

/// Returns nullopt if there is no memory.
std::optional<rounds> start(const domains::domain_set& domains) noexcept {
  try {
    return domains.start_rounds();
  } catch (const std::exception& why) {
    base::log(log_level::error, why.what());
    return std::nullopt;
  }
}

/// Whether each domain's event loop has gone round; logs those that have not.
bool are_complete(const rounds& rounds) {
  std::string waiting;
  for (const auto& each : rounds) {
    if (!each.waits.expired()) {
      waiting += (waiting.empty() ? "" : ", ") + each.domain;
    }
  }
  if (!waiting.empty()) {
    base::log(log_level::warning,
              "the keeper ends this process if it hangs: no report, for the event loops of these "
              "domains have not gone round: " +
                  waiting);
  }
  return waiting.empty();
}

}  // namespace

void report_until(const sigset_t& stop,
                  std::optional<std::chrono::microseconds> timeout,
                  keeper::descriptor_store& keeper,
                  const domains::domain_set& domains) {
  if (!timeout) {
    int number = 0;
    ::sigwait(&stop, &number);
    return;
  }
  const std::chrono::nanoseconds interval = *timeout / 3;
  const auto seconds = std::chrono::floor<std::chrono::seconds>(interval);
  const timespec pause{seconds.count(), (interval - seconds).count()};
  report(keeper);
  std::optional<rounds> started = start(domains);
  while (::sigtimedwait(&stop, nullptr, &pause) == -1) {
    if (started && !are_complete(*started)) {
      continue;
    }
    if (started) {
      report(keeper);
    }
    started = start(domains);
  }
}

}  // namespace gpushm::app
