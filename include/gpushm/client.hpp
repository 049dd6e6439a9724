// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "gpushm/error.hpp"
#include "gpushm/export.hpp"
#include "gpushm/segment.hpp"
#include "gpushm/types.hpp"

namespace gpushm {

namespace detail {
class client_impl;
class subscription_impl;
}  // namespace detail

/// Most bytes and mappings that a client keeps though nobody uses them, unless told otherwise.
inline constexpr std::uint64_t default_cache_bytes = 64ULL << 30U;
inline constexpr std::uint64_t default_cache_entries = 256;

/// Mappings of persistent segments stay for the next open after their last user is gone, within
/// these limits; those in use do not count. What is not given here comes from the environment
/// (`GPUSHM_CACHE_MAX_BYTES`, also like "16GiB", `GPUSHM_CACHE_MAX_ENTRIES`, or "unlimited"), then
/// from the defaults. 0 keeps nothing, 2^64-1 is unlimited.
struct cache_options {
  std::optional<std::uint64_t> max_bytes = {};
  std::optional<std::uint64_t> max_entries = {};
};

struct cache_bounds {
  std::uint64_t max_bytes = default_cache_bytes;
  std::uint64_t max_entries = default_cache_entries;
};

/// What a client's import cache did and has.
struct cache_stats {
  std::uint64_t hits = 0;          ///< opens without broker and driver
  std::uint64_t misses = 0;        ///< opens that asked the broker
  std::uint64_t evictions = 0;     ///< mappings that went because of the limits
  std::uint64_t kept_entries = 0;  ///< mappings that nobody uses
  std::uint64_t kept_bytes = 0;
  std::uint64_t used_entries = 0;  ///< mappings in use
  std::uint64_t used_bytes = 0;
};

struct connect_options {
  /// The broker's socket. Empty: `$GPUSHM_SOCKET`; else the one domain mounted under
  /// `/run/gpushm/d` (several: `errc::ambiguous_domain`); else `/run/gpushm/d/default/socket`.
  std::string socket_path = {};
  /// How long to wait for a broker that is not there yet, its welcome included. Zero: do not wait
  /// for it to appear, and `request_timeout` for its welcome. `forever`: without an end.
  std::chrono::milliseconds timeout{0};
  /// How long any one request may take, waiting for names excluded.
  std::chrono::milliseconds request_timeout{30'000};
  cache_options cache = {};
  /// Ends the wait for a broker, also one that a later call of the client connects to again: that
  /// call throws `errc::cancelled`.
  std::stop_token stop = {};
};

struct create_options {
  /// Bytes; must not be 0.
  std::uint64_t size_bytes = 0;
  /// An ordinal as CUDA numbers it, "GPU-<uuid>", "MIG-<uuid>", "host", or "auto": the first
  /// visible GPU, else the host.
  std::string device = "auto";
  gpushm::lifetime lifetime = gpushm::lifetime::leased;
  /// Size of one physical allocation, rounded up to the device's granularity; 0: one for all. Keep
  /// 0 for memory that other libraries get: many ask the driver for the range of an address
  /// (`cuMemGetAddressRange`) and see the first chunk only.
  std::uint64_t chunk_bytes = 0;
  /// Host segments only: use 2 MiB huge pages (errc::out_of_memory when the node has none free).
  bool huge_pages = false;
};

struct share_options {
  /// `persistent` only for memory that travels as descriptors (chunks of virtual memory, memfds).
  gpushm::lifetime lifetime = gpushm::lifetime::leased;
  /// Up to 64 KiB for those who open it.
  std::span<const std::byte> metadata = {};
  /// False: only this client sees it until `segment::publish`.
  bool publish = true;
};

struct open_options {
  gpushm::access access = gpushm::access::read;
  /// How long to wait for the name to be published. Zero: do not wait.
  std::chrono::milliseconds timeout{0};
  /// The GPU that will use the memory, written as in `create_options::device`; empty: the GPU that
  /// the memory is on, or the first visible GPU when CUDA does not show that one.
  std::string device = {};
  /// When not 0: `errc::size_mismatch` unless the segment has exactly this size.
  std::uint64_t expected_size_bytes = 0;
  /// Ends the wait for the name at once: `errc::cancelled`. A name that is there is opened all the
  /// same.
  std::stop_token stop = {};
};

/// What `subscribe` reports. Values travel on the wire: never renumber.
enum class event_kind : std::uint8_t {
  published = 1,
  opened = 2,    ///< the broker granted another connection a lease; its import may still fail
  released = 3,  ///< the last lease other than the creator's ended; not if no such lease was used:
                 ///< an import that failed is followed by no `released`
  removed = 4,
  peer_died = 5,  ///< a process that created or held the segment ended without a goodbye; it can
                  ///< write nothing any more (docs/sharing.md, "The fence")
  resync = 6,     ///< events were lost (slow subscriber, or a new broker): list again
  unfenced = 7,   ///< an operator has given up what such a process left: it may still be written
};
[[nodiscard]] GPUSHM_API std::string_view to_string(event_kind value) noexcept;

struct event {
  event_kind kind = event_kind::resync;
  std::string name;
  gpushm::generation generation = 0;
  std::uint32_t leases = 0;   ///< after the event
  std::int32_t peer_pid = 0;  ///< of the process that caused it, as the broker sees it; 0: unknown
};

/// A stream of events; ends with the object. Move-only.
/// Distinct objects: safe. Shared objects: `next` from one thread at a time.
class GPUSHM_API subscription {
 public:
  subscription(subscription&&) noexcept;
  subscription& operator=(subscription&&) noexcept;
  subscription(const subscription&) = delete;
  subscription& operator=(const subscription&) = delete;
  ~subscription();

  /// The next event, or nothing when `timeout` passes, or `stop` is asked to, first. At most 1,024
  /// unread events are kept; then the oldest are dropped and a `resync` says so. Throws
  /// `errc::broker_gone` once, when the broker is gone and everything before has been read; later
  /// calls resume on the new broker after a `resync`.
  [[nodiscard]] std::optional<event> next(std::chrono::milliseconds timeout,
                                          const std::stop_token& stop = {});

 private:
  friend class client;
  explicit subscription(std::shared_ptr<detail::subscription_impl> impl) noexcept;
  std::shared_ptr<detail::subscription_impl> impl_;
};

/// One name's outcome of `open_many`: a segment, or why not; never both, never neither. Move-only.
class open_result {
 public:
  /// Precondition: `opened` is not empty.
  explicit open_result(segment opened) noexcept : outcome_(std::move(opened)) {}
  explicit open_result(const error& failure) noexcept : outcome_(failure) {}

  /// A segment?
  explicit operator bool() const noexcept { return outcome_.index() == 0; }
  /// Throws the failure where there is one.
  [[nodiscard]] segment& value() & {
    if (const error* const why = failure()) {
      throw error(*why);
    }
    return std::get<segment>(outcome_);
  }
  [[nodiscard]] const segment& value() const& { return const_cast<open_result&>(*this).value(); }
  [[nodiscard]] segment&& value() && { return std::move(value()); }
  /// Null where there is a segment.
  [[nodiscard]] const error* failure() const noexcept { return std::get_if<error>(&outcome_); }

 private:
  std::variant<segment, error> outcome_;
};

/// A connection to a broker. Move-only; segments and subscriptions made with it stay usable after
/// it is gone (they share the connection). One background thread reads the socket; callbacks do not
/// exist, so user code never runs on it. When the broker dies, requests under way throw
/// `errc::broker_gone` and the next request connects to its successor. In a forked child every call
/// throws `errc::forked`. A moved-from client is empty: every call throws `errc::invalid_argument`.
///
/// Distinct objects: safe. Shared objects: safe.
class GPUSHM_API client {
 public:
  /// Blocks until connected, at most `options.timeout`, or one request timeout if that is zero.
  /// Throws `error`: broker_unreachable, ambiguous_domain, permission_denied, unsupported_version,
  /// too_many_connections.
  [[nodiscard]] static client connect(const connect_options& options = {});

  client(client&&) noexcept;
  client& operator=(client&&) noexcept;
  client(const client&) = delete;
  client& operator=(const client&) = delete;
  ~client();

  /// Reserves the name, allocates and maps the memory for reading and writing, and hands its
  /// descriptors to the broker. Nobody else sees it before `publish`; contents are zero on the host
  /// and undefined on GPUs. Where a dead process had the name, waits until that can write nothing
  /// any more, ten seconds at most. Throws `error`: invalid_argument, already_exists,
  /// writer_ending, quota_exceeded, out_of_memory, too_many_segments, too_many_descriptors,
  /// device_not_found, driver_unavailable, driver_error, broker_gone, forked.
  [[nodiscard]] segment create(std::string_view name, const create_options& options);

  /// Makes memory that somebody else allocated a segment, published at once: the range may lie
  /// anywhere in cudaMalloc memory, in an exportable pool, in virtual memory (also over many
  /// chunks), or in a sealed memfd. `data()` of the result is `pointer`; the memory stays its
  /// allocator's. Finish the writes that readers rely on first.
  ///
  /// Virtual memory and memfds live on in the broker. cudaMalloc and pool memory stays this
  /// process's: call `segment::unshare` before it is freed. The segment ends with its last
  /// `segment` here, with this process (`errc::peer_died` for who comes later), or when an importer
  /// comes and the memory is found to be freed (`errc::gone_or_replaced`). Legacy handles give
  /// importers the whole allocation, not only this range.
  ///
  /// Throws `error`: invalid_argument, not_exportable (naming the allocator and the remedy), and as
  /// `create`.
  [[nodiscard]] segment share(std::string_view name,
                              void* pointer,
                              std::uint64_t size_bytes,
                              const share_options& options = {});

  /// Opens a published segment. Blocks while the name is not there, at most `options.timeout`.
  /// Throws `error`: no_such_segment (not there in time), size_mismatch, device_not_visible,
  /// device_not_found, driver_unavailable, driver_error, too_many_descriptors, broker_gone, forked;
  /// for memory that stays its exporter's also peer_died, gone_or_replaced, pid_collision,
  /// peer_unreachable.
  [[nodiscard]] segment open(std::string_view name, const open_options& options = {});

  /// As `open`, but a name that is not there (in time), whose exporter has died, or that only dead
  /// processes had that may still write it, is an empty result and not an error.
  [[nodiscard]] std::optional<segment> try_open(std::string_view name,
                                                const open_options& options = {});

  /// Opens any number of names with few round trips. One result for each name, in order. `timeout`
  /// is for all of them together.
  [[nodiscard]] std::vector<open_result> open_many(std::span<const std::string> names,
                                                   const open_options& options = {});

  /// Published segments, and own unpublished ones, whose names start with `prefix`, sorted by name.
  [[nodiscard]] std::vector<segment_info> list(std::string_view prefix = {});

  /// Throws `errc::no_such_segment`.
  [[nodiscard]] segment_info stat(std::string_view name);

  /// Takes the name away; memory goes with the last lease. Allowed to the creator's connection, the
  /// creator's uid and the broker's uid. Throws no_such_segment, permission_denied.
  void remove(std::string_view name);

  /// Ends the leases on the segment whose connections have ended without a goodbye and whose fence
  /// has not come, though their processes may still write it: for operators. Subscribers hear
  /// `unfenced`. Allowed as `remove`. Throws no_such_segment, permission_denied, invalid_argument
  /// (nothing of it waits for a fence).
  void unfence(std::string_view name);

  /// Events of segments whose names start with `prefix`, from now on.
  [[nodiscard]] subscription subscribe(std::string_view prefix = {});

  [[nodiscard]] broker_info broker() const;

  /// What the import cache of this client did and has. Reads memory only.
  [[nodiscard]] gpushm::cache_stats cache_stats() const;
  /// Ends the mappings that nobody uses. Blocks for the driver.
  void trim();

 private:
  explicit client(std::shared_ptr<detail::client_impl> impl) noexcept;
  std::shared_ptr<detail::client_impl> impl_;
};

/// Sends the library's log lines (warnings, mostly) to `sink` instead of nowhere; an empty function
/// turns them off again. Thread-safe; `sink` may be called from any thread, without a lock of the
/// library, and may call gpushm; but not end a client, nor ask a broker of this process.
enum class log_level : std::uint8_t { debug = 0, info = 1, warning = 2, error = 3 };
GPUSHM_API void set_log_sink(std::function<void(log_level, std::string_view)> sink);

}  // namespace gpushm
