// SPDX-License-Identifier: Apache-2.0
#include "broker/hub/counters.hpp"

#include <algorithm>
#include <chrono>

namespace gpushm::broker_detail {

namespace {
/// Longer times reported by a client are clamped to this.
constexpr std::uint64_t longest_open_ns = std::chrono::nanoseconds(std::chrono::hours(1)).count();
/// Upper bound per report: a cache hit takes about 100 ns, and reports come once a second at most.
constexpr std::uint64_t max_cached = 1ULL << 32U;
/// The same of items, and of their bytes: a second of a memory of 16 TiB/s.
constexpr std::uint64_t max_items = 1ULL << 32U;
constexpr std::uint64_t max_item_bytes = 1ULL << 44U;
}  // namespace

void counters::count_failure(std::uint64_t code) noexcept {
  if (code < failures_.size()) {
    add(failures_[code]);
  }
}

void counters::count(latency& latency, std::uint64_t ns) noexcept {
  const std::uint64_t counted = std::min(ns, longest_open_ns);
  const auto* const bound =
      std::lower_bound(open_latency_bounds_ns.begin(), open_latency_bounds_ns.end(), counted);
  add(latency.buckets[static_cast<std::size_t>(bound - open_latency_bounds_ns.begin())]);
  add(latency.sum_ns, counted);
}

void counters::reported(const wire::report& from_client) noexcept {
  for (const std::uint64_t took : from_client.open_ns) {
    count(opens_took_, took);
  }
  for (const std::uint64_t took : from_client.import_ns) {
    count(imports_took_, took);
  }
  for (const std::uint64_t code : from_client.failures) {
    count_failure(code);
  }
  add(cached_, std::min(from_client.cached, max_cached));
  add(items_, std::min(from_client.items, max_items));
  add(item_bytes_, std::min(from_client.item_bytes, max_item_bytes));
}

void counters::state_of(const core::domain& now) noexcept {
  segments_.store(now.segment_count(), std::memory_order_relaxed);
  allocated_bytes_.store(now.allocated_bytes(), std::memory_order_relaxed);
  leases_.store(now.lease_count(), std::memory_order_relaxed);
  connections_.store(now.session_count(), std::memory_order_relaxed);
  ending_.store(now.ending_count(), std::memory_order_relaxed);
  waiting_.store(now.waiting_count(), std::memory_order_relaxed);
}

broker_statistics counters::read() const {
  const auto value = [](const counter& counter) { return counter.load(std::memory_order_relaxed); };
  broker_statistics result;
  result.segments = value(segments_);
  result.allocated_bytes = value(allocated_bytes_);
  result.leases = value(leases_);
  result.connections = value(connections_);
  result.ending_connections = value(ending_);
  result.unfenced = value(unfenced_);
  result.waiting_opens = value(waiting_);
  result.opens = value(opens_);
  result.cached_opens = value(cached_);
  for (std::size_t code = 0; code < failures_.size(); ++code) {
    if (const std::uint64_t count = value(failures_[code]); count != 0) {
      result.open_failures.emplace(static_cast<errc>(code), count);
    }
  }
  for (std::size_t i = 0; i < result.open_latency.size(); ++i) {
    result.open_latency[i] = value(opens_took_.buckets[i]);
  }
  result.open_latency_sum_ns = value(opens_took_.sum_ns);
  return result;
}

report_counts counters::reports() const noexcept {
  const auto value = [](const counter& counter) { return counter.load(std::memory_order_relaxed); };
  report_counts result;
  result.items = value(items_);
  result.item_bytes = value(item_bytes_);
  for (std::size_t i = 0; i < result.import_latency.size(); ++i) {
    result.import_latency[i] = value(imports_took_.buckets[i]);
  }
  result.import_latency_sum_ns = value(imports_took_.sum_ns);
  return result;
}

}  // namespace gpushm::broker_detail
