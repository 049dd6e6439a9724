// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "broker/hub/request_counts.hpp"
#include "core/domain.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/error.hpp"
#include "protocol/wire/messages.hpp"

namespace gpushm::broker_detail {

/// Segments of a broker that was lost with its keeper.
struct return_counts {
  std::uint64_t handed_back = 0;
  std::uint64_t lost = 0;  ///< persistent ones
};

/// What clients have reported, besides what is in `broker_statistics`.
struct report_counts {
  // Of channels, by their producers.
  std::uint64_t items = 0;
  std::uint64_t item_bytes = 0;
  // Of opens, from the broker's reply to the mapping, by `open_latency_bounds_ns`.
  decltype(broker_statistics::open_latency) import_latency{};
  std::uint64_t import_latency_sum_ns = 0;
};

/// The broker's counters. Written on its strand, read from any thread without a lock: the values of
/// one `read` need not be from the same moment.
///
/// Thread-safety: distinct objects: safe; shared objects: writing unsafe, `read` safe.
class counters {
 public:
  void opened() noexcept { add(opens_); }
  void unfenced() noexcept { add(unfenced_); }
  void open_failed(errc why) noexcept {
    count_failure(static_cast<std::uint64_t>(why));
    requests_.refused(request_kind::open, why);
  }
  /// Thread-safe.
  [[nodiscard]] report_counts reports() const noexcept;
  [[nodiscard]] request_counts& requests() noexcept { return requests_; }
  [[nodiscard]] const request_counts& requests() const noexcept { return requests_; }
  /// Adds a client's report. No report can make a counter decrease.
  void reported(const wire::report& from_client) noexcept;
  void set(const return_counts& now) noexcept {
    handed_back_.store(now.handed_back, std::memory_order_relaxed);
    lost_.store(now.lost, std::memory_order_relaxed);
  }
  void freeing(std::uint64_t bytes) noexcept {
    freeing_bytes_.store(bytes, std::memory_order_relaxed);
  }
  /// Sets the other gauges.
  void state_of(const core::domain& now) noexcept;

  [[nodiscard]] broker_statistics read() const;
  [[nodiscard]] return_counts returns() const noexcept {
    return {handed_back_.load(std::memory_order_relaxed), lost_.load(std::memory_order_relaxed)};
  }
  [[nodiscard]] std::uint64_t freeing_bytes() const noexcept {
    return freeing_bytes_.load(std::memory_order_relaxed);
  }

 private:
  using counter = std::atomic<std::uint64_t>;
  static constexpr std::size_t codes = 64;  // errc values are below

  struct latency {
    std::array<counter, std::tuple_size_v<decltype(broker_statistics::open_latency)>> buckets{};
    counter sum_ns{0};
  };

  static void add(counter& counter, std::uint64_t more = 1) noexcept {
    counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
  static void count(latency& latency, std::uint64_t ns) noexcept;
  void count_failure(std::uint64_t code) noexcept;

  counter segments_{0};
  counter allocated_bytes_{0};
  counter freeing_bytes_{0};
  counter leases_{0};
  counter connections_{0};
  counter ending_{0};
  counter unfenced_{0};
  counter waiting_{0};
  counter opens_{0};
  counter cached_{0};
  counter handed_back_{0};
  counter lost_{0};
  std::array<counter, codes> failures_{};
  latency opens_took_;
  latency imports_took_;
  counter items_{0};
  counter item_bytes_{0};
  request_counts requests_;
};

}  // namespace gpushm::broker_detail
