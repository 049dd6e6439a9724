// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/report/request_latency.hpp"
#include "gpushm/error.hpp"
#include "protocol/wire/messages.hpp"

namespace gpushm::broker_detail {

/// What members ask for. Their names are values of a metric's label: never change one.
enum class request_kind : std::uint8_t {
  other,  ///< not a request of this protocol
  connect,
  hello,
  reserve,
  attach,
  publish,
  open,  ///< refusals: also of each name of an open_many
  open_many,
  fetch_chunks,
  release,
  remove,
  list,
  stat,
  subscribe,
  unsubscribe,
  bye,
  confirmed,
  report,
  unfence,
  keep,
  cancel,
  create_version,
  change_version,
  resolve,
  list_versions,
};
inline constexpr std::size_t request_kinds =
    static_cast<std::size_t>(request_kind::list_versions) + 1;

[[nodiscard]] std::string_view to_string(request_kind kind) noexcept;
[[nodiscard]] request_kind kind_of(const wire::body& message) noexcept;

/// How requests ended, since the start of the process. Written on the broker's strand, read from
/// any thread without a lock.
///
/// Thread-safety: distinct objects: safe; shared objects: writing unsafe, reading safe.
class request_counts {
 public:
  using buckets = std::array<std::uint64_t, base::request_latency_bounds_ns.size() + 1>;
  struct refusal {
    request_kind what = request_kind::other;
    errc code = errc::system_error;
    std::uint64_t count = 0;
  };
  struct latency {
    request_kind what = request_kind::other;
    buckets counts{};
    std::uint64_t sum_ns = 0;
  };

  void refused(request_kind kind, errc why) noexcept;
  void handled(request_kind request_kind, std::chrono::nanoseconds took) noexcept;

  /// Those that are not zero. Both throw std::bad_alloc.
  [[nodiscard]] std::vector<refusal> refusals() const;
  [[nodiscard]] std::vector<latency> latencies() const;

 private:
  using counter = std::atomic<std::uint64_t>;
  static constexpr std::size_t codes = 64;  // errc values are below

  static void add(counter& counter, std::uint64_t more = 1) noexcept {
    counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }

  std::array<std::array<counter, codes>, request_kinds> refused_{};
  std::array<std::array<counter, std::tuple_size_v<buckets>>, request_kinds> latency_{};
  std::array<counter, request_kinds> latency_sum_ns_{};
};

}  // namespace gpushm::broker_detail
