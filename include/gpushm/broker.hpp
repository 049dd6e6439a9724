// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "gpushm/broker.h"
#include "gpushm/error.hpp"
#include "gpushm/types.hpp"

namespace gpushm {
inline namespace v1 {

/// Limits of one broker, with the documented defaults. As `gpushm_broker_limits`.
struct broker_limits {
  std::uint32_t max_segments = 65'536;
  std::uint32_t max_connections = 4'096;
  std::uint64_t quota_bytes = 0;
  std::uint64_t quota_bytes_per_principal = 0;
  std::uint64_t memory_bytes = 0;
  std::uint32_t max_pending_opens = 4'096;
  std::uint32_t reserved_descriptors = 64;
  std::uint64_t max_descriptors = 0;
  std::uint32_t hello_timeout_ms = 5'000;
  std::uint32_t send_timeout_ms = 5'000;
  std::uint32_t max_inflight_descriptors = 1'012;
  std::uint32_t fence_delay_ms = 5'000;
};

namespace glue {

/// Copies between the C and the C++ structure, in either direction.
template <typename From, typename To>
void copy_limits(const From& source, To& target) noexcept {
  target.max_segments = source.max_segments;
  target.max_connections = source.max_connections;
  target.quota_bytes = source.quota_bytes;
  target.quota_bytes_per_principal = source.quota_bytes_per_principal;
  target.memory_bytes = source.memory_bytes;
  target.max_descriptors = source.max_descriptors;
  target.max_pending_opens = source.max_pending_opens;
  target.reserved_descriptors = source.reserved_descriptors;
  target.hello_timeout_ms = source.hello_timeout_ms;
  target.send_timeout_ms = source.send_timeout_ms;
  target.max_inflight_descriptors = source.max_inflight_descriptors;
  target.fence_delay_ms = source.fence_delay_ms;
}

}  // namespace glue

/// Memory and descriptors that several brokers of one process share, so that a full domain leaves
/// room for the others.
///
/// Thread-safe.
class broker_budget {
 public:
  /// 0: no limit. Does not block. Throws `errc::out_of_memory`.
  broker_budget(std::uint64_t memory_bytes, std::uint64_t descriptors) {
    gpushm_broker_budget* result = nullptr;
    glue::check(gpushm_broker_budget_create(memory_bytes, descriptors, &result));
    handle_.reset(result);
  }
  [[nodiscard]] std::uint64_t used_memory_bytes() const noexcept {
    return gpushm_broker_budget_used_memory_bytes(handle_.get());
  }
  [[nodiscard]] std::uint64_t used_descriptors() const noexcept {
    return gpushm_broker_budget_used_descriptors(handle_.get());
  }

  /// Owned by this object.
  [[nodiscard]] const gpushm_broker_budget* handle() const noexcept { return handle_.get(); }

 private:
  std::unique_ptr<gpushm_broker_budget, glue::deleter<&gpushm_broker_budget_free>> handle_;
};

/// The members are those of `gpushm_broker_options`.
struct broker_options {
  std::string socket_path = {};
  std::string lock_path = {};
  std::string domain = "default";
  mode_t mode = 0660;
  std::optional<gid_t> group = {};
  broker_limits limits = {};
  std::shared_ptr<const broker_budget> shared = {};
  bool raise_descriptor_limit = false;
  bool accept_fake_chunks = false;
};

/// Upper bounds of the buckets of `broker_statistics::open_latency`, in nanoseconds: 10 µs to 10 s.
inline constexpr std::array<std::uint64_t, GPUSHM_OPEN_LATENCY_BOUNDS> open_latency_bounds_ns{
    10'000,
    20'000,
    50'000,
    100'000,
    200'000,
    500'000,
    1'000'000,
    2'000'000,
    5'000'000,
    10'000'000,
    20'000'000,
    50'000'000,
    100'000'000,
    200'000'000,
    500'000'000,
    1'000'000'000,
    2'000'000'000,
    5'000'000'000,
    10'000'000'000};

/// Metrics: current contents of a broker, and counters since its start. As
/// `gpushm_broker_statistics`; `open_failures` has the codes that occurred.
struct broker_statistics {
  std::uint64_t segments = 0;
  std::uint64_t allocated_bytes = 0;
  std::uint64_t leases = 0;
  std::uint64_t connections = 0;
  std::uint64_t ending_connections = 0;
  std::uint64_t unfenced = 0;
  std::uint64_t waiting_opens = 0;
  std::uint64_t opens = 0;
  std::uint64_t cached_opens = 0;
  std::map<errc, std::uint64_t> open_failures;
  std::array<std::uint64_t, open_latency_bounds_ns.size() + 1> open_latency{};
  std::uint64_t open_latency_sum_ns = 0;
};

/// An in-process broker on a background thread. Never calls CUDA. Stops when the object is
/// destroyed, which frees persistent segments.
///
/// A child created by fork immediately closes its copies of socket, lock, connections and memory;
/// the broker belongs to the parent: in the child every function of the object throws
/// `errc::forked`, and destroying it does nothing. A moved-from object is empty: everything but
/// destroying and assigning throws `errc::invalid_argument`.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe, except `statistics`.
class broker {
 public:
  /// Blocks until clients can connect. As `gpushm_broker_start`.
  [[nodiscard]] static broker start(const broker_options& options) {
    auto limits = glue::sized<gpushm_broker_limits>();
    glue::copy_limits(options.limits, limits);
    auto wanted = glue::sized<gpushm_broker_options>();
    wanted.socket_path = glue::text(options.socket_path);
    wanted.lock_path = glue::text(options.lock_path);
    wanted.domain = glue::text(options.domain);
    wanted.limits = &limits;
    wanted.shared = options.shared ? options.shared->handle() : nullptr;
    wanted.mode = options.mode;
    wanted.group = options.group.value_or(0);
    wanted.has_group = options.group.has_value();
    wanted.raise_descriptor_limit = options.raise_descriptor_limit;
    wanted.accept_fake_chunks = options.accept_fake_chunks;
    gpushm_broker* result = nullptr;
    glue::check(gpushm_broker_start(&wanted, &result));
    return broker(result);
  }
  /// Takes ownership of `handle`.
  explicit broker(gpushm_broker* handle) noexcept : handle_(handle) {}

  [[nodiscard]] std::string socket_path() const {
    gpushm_string path{};
    glue::check(gpushm_broker_socket_path(handle_.get(), &path));
    return std::string(glue::view(path));
  }
  [[nodiscard]] gpushm::epoch epoch() const {
    gpushm_epoch epoch{};
    glue::check(gpushm_broker_epoch(handle_.get(), &epoch));
    return glue::epoch_from(epoch);
  }
  /// Does not block. The values are not a consistent snapshot.
  [[nodiscard]] broker_statistics statistics() const {
    auto got = glue::sized<gpushm_broker_statistics>();
    glue::check(gpushm_broker_get_statistics(handle_.get(), &got));
    broker_statistics result;
    result.segments = got.segments;
    result.allocated_bytes = got.allocated_bytes;
    result.leases = got.leases;
    result.connections = got.connections;
    result.ending_connections = got.ending_connections;
    result.unfenced = got.unfenced;
    result.waiting_opens = got.waiting_opens;
    result.opens = got.opens;
    result.cached_opens = got.cached_opens;
    for (std::uint16_t code = 0; code < GPUSHM_ERRC_LIMIT; ++code) {
      if (got.open_failures[code] != 0) {
        result.open_failures.emplace(static_cast<errc>(code), got.open_failures[code]);
      }
    }
    for (std::size_t at = 0; at < result.open_latency.size(); ++at) {
      result.open_latency[at] = got.open_latency[at];
    }
    result.open_latency_sum_ns = got.open_latency_sum_ns;
    return result;
  }

  /// Owned by this object; null for an empty one.
  [[nodiscard]] gpushm_broker* handle() const noexcept { return handle_.get(); }

 private:
  std::unique_ptr<gpushm_broker, glue::deleter<&gpushm_broker_stop>> handle_;
};

}  // namespace v1
}  // namespace gpushm
