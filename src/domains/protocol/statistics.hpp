// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/report/request_latency.hpp"
#include "domains/protocol/process_usage.hpp"
#include "domains/protocol/usage.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/error.hpp"

/// What operators see of gpushm-brokerd, besides the counters in `reading`.
namespace gpushm::domains {

/// Rows of `domain_statistics::principals`, without the sum of the others.
inline constexpr std::size_t max_principals = 200;
/// The name of that sum; no principal has it.
inline constexpr std::string_view other_principals = "other";

/// Rows of `domain_statistics::aliases`, and bytes of their names.
inline constexpr std::size_t max_aliases = 64;
inline constexpr std::size_t max_alias_bytes = 4'096;

/// Upper bounds of the buckets of `request_latency`.
using base::request_latency_bounds_ns;

/// gpushm-brokerd itself.
struct broker_facts {
  std::string version;
  std::uint64_t started_ns = 0;  ///< since the Unix epoch
  // Since the run directory was created, so over all processes and pods: usually since the node was
  // booted.
  std::uint64_t starts = 0;            ///< of a process that got ready, this one included
  std::uint64_t takeovers = 0;         ///< those of them that continued for another keeper
  std::uint64_t failed_takeovers = 0;  ///< after which the earlier keeper continued
  std::vector<usage> budgets = {};     ///< of the process: level "process"
  process_usage process = {};
};

/// What one principal of a domain uses (docs/threat-model.md, "Principals"). The rows of a domain
/// add up to what the domain uses.
struct principal_statistics {
  std::string name;  ///< "pod UID", "container ID", "uid N", …, or `other_principals`
  std::uint64_t connections = 0;
  std::uint64_t segments = 0;
  std::uint64_t host_bytes = 0;
  std::uint64_t gpu_bytes = 0;     ///< of all GPUs
  std::uint64_t memory_bytes = 0;  ///< of the broker: records, metadata, unread packets
  std::uint64_t descriptors = 0;
  std::uint64_t subscriptions = 0;
  std::uint64_t waiting_opens = 0;
  friend bool operator==(const principal_statistics&, const principal_statistics&) = default;
};

/// A part of a domain's segments.
struct segment_amount {
  std::uint64_t segments = 0;
  std::uint64_t bytes = 0;
  std::uint64_t oldest_ms = 0;  ///< how long the first of them has waited; 0 where nothing waits
  friend bool operator==(const segment_amount&, const segment_amount&) = default;
};

/// Segments of one kind of memory.
struct kind_statistics {
  std::string name;  ///< as in `gpushm ls`: "host", "cuda-vmm", …
  segment_amount amount;
  friend bool operator==(const kind_statistics&, const kind_statistics&) = default;
};

struct refusal_statistics {
  std::string request;  ///< "open", "reserve", …, or "connect"
  errc code = errc::system_error;
  std::uint64_t count = 0;  ///< since the start of the process
  friend bool operator==(const refusal_statistics&, const refusal_statistics&) = default;
};

/// Time of the broker's thread for a request: from taking it up until its effects are permanent,
/// and its reply is sent or waits for a condition, such as a name. Of a request that takes several
/// turns, that of the last one. The time in the socket before is not included.
struct request_latency {
  std::string request;
  /// Requests of each bucket, not cumulative; the last bucket has no upper bound.
  std::array<std::uint64_t, request_latency_bounds_ns.size() + 1> counts{};
  std::uint64_t sum_ns = 0;
  friend bool operator==(const request_latency&, const request_latency&) = default;
};

/// An alias of versions, and the number of the one that it refers to.
struct alias_statistics {
  std::string name;  ///< "BASE@ALIAS"
  std::uint64_t number = 0;
  friend bool operator==(const alias_statistics&, const alias_statistics&) = default;
};

struct domain_statistics {
  std::vector<principal_statistics> principals;  ///< the largest first, the sum of others last
  std::uint64_t others = 0;                      ///< principals in that sum
  std::vector<usage> budgets;                    ///< of the domain: level "domain"
  segment_amount unheld;       ///< persistent segments without a lease: no process has them
  segment_amount fence_waits;  ///< with leases of processes that ended without a goodbye
  segment_amount close_waits;  ///< removed, and their memory is not free yet
  std::vector<kind_statistics> kinds;
  std::vector<refusal_statistics> refusals;
  std::vector<request_latency> latencies;  ///< of kinds of requests that were handled
  std::uint64_t channels = 0;              ///< with a producer
  // As their producers report, once a second, since the start of the process.
  std::uint64_t channel_items = 0;       ///< published
  std::uint64_t channel_item_bytes = 0;  ///< of the slots of those
  /// The times of opens from the broker's reply to the mapping, as clients report them, since the
  /// start of the process: opens of each bucket of `open_latency_bounds_ns`, the last one without a
  /// bound.
  std::array<std::uint64_t, open_latency_bounds_ns.size() + 1> import_latency{};
  std::uint64_t import_latency_sum_ns = 0;
  std::vector<alias_statistics> aliases;  ///< the first ones, in the order of their names
  std::uint64_t other_aliases = 0;        ///< that are left out, or refer to no version
};

}  // namespace gpushm::domains
