// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "gpushm/error.hpp"
#include "gpushm/export.hpp"
#include "gpushm/types.hpp"

namespace gpushm {

/// Limits of one broker; the defaults are the documented ones (docs/protocol.md, "Limits").
struct broker_limits {
  std::uint32_t max_segments = 65'536;  ///< slots of the state table
  std::uint32_t max_connections = 4'096;
  std::uint64_t quota_bytes = 0;  ///< of the whole domain; 0: no limit
  /// Of one principal (docs/threat-model.md): a pod, a container, or a uid. 0: no limit.
  std::uint64_t quota_bytes_per_principal = 0;
  /// Memory of this process that members can make it hold: segments' records, metadata,
  /// connections, answers that are not read. 0: half of what the process may use (its
  /// control group, the machine), 16 MiB to 1 GiB.
  std::uint64_t memory_bytes = 0;
  std::uint32_t max_pending_opens = 4'096;  ///< opens of one connection that wait for their names
  std::uint32_t reserved_descriptors = 64;  ///< kept free for the broker itself
  std::uint64_t max_descriptors = 0;        ///< 0: what the process may open, less those
  std::uint32_t hello_timeout_ms = 5'000;   ///< a connection that says nothing is closed
  std::uint32_t send_timeout_ms = 5'000;    ///< a peer that does not read is dropped
  std::uint32_t max_inflight_descriptors = 1'012;  ///< sent to one peer and not read by it
  /// How long leases of a process that has died are kept where there is no fence or it is not
  /// proven, and of one that has executed another program: GPU work of a dead process was seen to
  /// write for up to 2.5 s (docs/sharing.md, "The fence").
  std::uint32_t fence_delay_ms = 5'000;
};

namespace core {
class process_budget;
}

/// Memory and descriptors that several brokers of one process share, so that a full domain leaves
/// room for the others.
///
/// Thread-safe.
class GPUSHM_API broker_budget {
 public:
  /// 0: no limit. Blocks on nothing. Throws `errc::out_of_memory`.
  broker_budget(std::uint64_t memory_bytes, std::uint64_t descriptors);
  [[nodiscard]] std::uint64_t used_memory_bytes() const noexcept;
  [[nodiscard]] std::uint64_t used_descriptors() const noexcept;

  /// For brokers only.
  [[nodiscard]] const std::shared_ptr<core::process_budget>& budget() const noexcept {
    return budget_;
  }

 private:
  std::shared_ptr<core::process_budget> budget_;
};

struct broker_options {
  std::string socket_path = {};  ///< empty: /run/gpushm/d/<domain>/socket
  /// The file whose lock keeps other brokers off the socket; empty: <socket_path>.lock. A process
  /// that can open it, for reading too, can hold the lock: where clients have the socket's
  /// directory mounted name a file that they do not see.
  std::string lock_path = {};
  std::string domain = "default";
  mode_t mode = 0660;  ///< of the socket
  std::optional<gid_t> group = {};
  broker_limits limits = {};
  /// Null: this broker is alone in its process.
  std::shared_ptr<const broker_budget> shared = {};
  /// Raise this process's soft limit of open files to its hard limit, so that more segments fit.
  bool raise_descriptor_limit = false;
  /// Also accept unnamed tmpfs files as GPU chunks: what the fake driver of the tests hands out.
  bool accept_fake_chunks = false;
};

/// Upper bounds of the classes of `broker_statistics::open_latency`, in nanoseconds: 10 µs to 10 s.
inline constexpr std::array<std::uint64_t, 19> open_latency_bounds_ns{10'000,
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

/// What a broker holds now, and what it did since its start: for metrics.
struct broker_statistics {
  std::uint64_t segments = 0;
  std::uint64_t allocated_bytes = 0;
  std::uint64_t leases = 0;
  std::uint64_t connections = 0;
  /// Ended without a goodbye, and their leases wait for the fence (docs/sharing.md).
  std::uint64_t ending_connections = 0;
  std::uint64_t unfenced = 0;  ///< segments of which such leases were given up
  std::uint64_t waiting_opens = 0;
  std::uint64_t opens = 0;         ///< answered with a segment
  std::uint64_t cached_opens = 0;  ///< answered by a client's import cache, as clients tell
  /// Refused by the broker, or failed in a client afterwards, as it tells.
  std::map<errc, std::uint64_t> open_failures;
  /// How many opens took up to each bound and more than the one before, as clients measure them,
  /// from the call to the mapping, waiting for the name included; the last class has no bound.
  std::array<std::uint64_t, open_latency_bounds_ns.size() + 1> open_latency{};
  std::uint64_t open_latency_sum_ns = 0;
};

/// A broker inside this process, on a thread of its own. Never calls CUDA. Stops with the object:
/// persistent segments go with it.
///
/// Stays this process's when it forks: a child closes its copies of socket, lock, connections and
/// memory at once, every function of the object throws `errc::forked` there, and destroying it does
/// nothing. A moved-from object is empty: everything but destroying and assigning throws
/// `errc::invalid_argument`.
///
/// Distinct objects: safe. Shared objects: unsafe, except `statistics`.
class GPUSHM_API broker {
 public:
  /// Returns once clients can connect. Throws `error`: address_in_use, permission_denied,
  /// system_error.
  [[nodiscard]] static broker start(const broker_options& options);
  broker(broker&&) noexcept;
  broker& operator=(broker&&) noexcept;
  broker(const broker&) = delete;
  broker& operator=(const broker&) = delete;
  ~broker();

  [[nodiscard]] const std::string& socket_path() const;
  [[nodiscard]] const gpushm::epoch& epoch() const;
  /// Does not block. The numbers need not be of one moment.
  [[nodiscard]] broker_statistics statistics() const;

 private:
  class impl;
  explicit broker(std::unique_ptr<impl> made) noexcept;
  [[nodiscard]] const impl& usable(std::string_view operation) const;
  std::unique_ptr<impl> impl_;
};

}  // namespace gpushm
