// SPDX-License-Identifier: Apache-2.0
// Reports of this client's opens and items, for the broker's counters.
#include <utility>

#include "base/report/log.hpp"
#include "client/session/connection.hpp"
#include "protocol/wire/codec.hpp"

namespace gpushm::client_detail {

void connection::opened_in(std::chrono::nanoseconds took,
                           std::chrono::nanoseconds import) noexcept {
  if (!takes_reports_ || broken()) {
    return;
  }
  try {
    if (reports_.add_latency(static_cast<std::uint64_t>(took.count()),
                             static_cast<std::uint64_t>(import.count()))) {
      wake_thread();
    }
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it is not counted then
  }
}

void connection::open_failed(errc why) noexcept {
  if (!takes_reports_ || broken()) {
    return;
  }
  try {
    if (reports_.add_failure(static_cast<std::uint64_t>(why))) {
      wake_thread();
    }
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it is not counted then
  }
}

void connection::published_item(std::uint64_t bytes) noexcept {
  if (takes_reports_ && !broken() && reports_.add_item(bytes)) {
    wake_thread();
  }
}

/// Runs on the connection's thread. The report is dropped if the broker does not read.
void connection::send_report() noexcept {
  try {
    if (auto report = reports_.take()) {
      static_cast<void>(event_queue_.try_send(wire::encode({0, std::move(*report)}), {}));
    }
  } catch (const std::exception& why) {
    base::log(log_level::debug, why.what());
  }
}

}  // namespace gpushm::client_detail
