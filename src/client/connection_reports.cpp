// SPDX-License-Identifier: Apache-2.0
// What the broker's counters hear of this client's opens.
#include <utility>

#include "base/log.hpp"
#include "client/connection.hpp"
#include "wire/codec.hpp"

namespace gpushm::detail {

namespace {
/// One packet tells of all opens of that time.
constexpr std::chrono::seconds report_delay{1};
/// The broker does not read: the numbers are not worth waiting for.
constexpr std::chrono::milliseconds send_timeout{10};
}  // namespace

void connection::opened_in(std::chrono::nanoseconds took) noexcept {
  note(&wire::report::open_ns, static_cast<std::uint64_t>(took.count()));
}

void connection::open_failed(errc why) noexcept {
  note(&wire::report::failures, static_cast<std::uint64_t>(why));
}

void connection::note(std::vector<std::uint64_t> wire::report::*list,
                      std::uint64_t value) noexcept {
  if (!takes_reports_ || broken()) {
    return;
  }
  bool first = false;
  bool full = false;
  try {
    const std::lock_guard lock(report_mutex_);
    (report_.*list).push_back(value);
    full = (report_.*list).size() == wire::max_batch;
    first = !report_due_;
    if (first) {
      report_due_ = std::chrono::steady_clock::now() + report_delay;
    }
  } catch (const std::bad_alloc&) {  // then that one is not counted
    return;
  }
  if (full) {
    send_report();
  } else if (first) {
    wake_thread();  // it waits for the socket only, so far
  }
}

std::optional<steady_time> connection::report_due() {
  const std::lock_guard lock(report_mutex_);
  return report_due_;
}

void connection::send_report() noexcept {
  if (!takes_reports_ || broken()) {
    return;
  }
  try {
    wire::report told;
    {
      const std::lock_guard lock(report_mutex_);
      told = std::exchange(report_, {});
      report_due_.reset();
    }
    told.cached = cached_opens_.exchange(0, std::memory_order_relaxed);
    if (told != wire::report{}) {
      send(wire::encode({0, std::move(told)}),
           {},
           {"report", {}},
           std::chrono::steady_clock::now() + send_timeout);
    }
  } catch (const std::exception& why) {
    base::log(log_level::debug, why.what());
  }
}

}  // namespace gpushm::detail
