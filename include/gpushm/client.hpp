// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "gpushm/error.hpp"
#include "gpushm/gpushm.h"
#include "gpushm/segment.hpp"
#include "gpushm/types.hpp"

namespace gpushm {
inline namespace v1 {

/// Default upper bounds of the bytes and mappings that a client caches while unused.
inline constexpr std::uint64_t default_cache_bytes = 64ULL << 30U;
inline constexpr std::uint64_t default_cache_entries = 256;

/// Mappings of persistent segments are cached for the next open after their last user is gone,
/// within these limits; mappings in use do not count. Unset members are read from the environment
/// (`GPUSHM_CACHE_MAX_BYTES`, which also accepts sizes such as "16GiB", and
/// `GPUSHM_CACHE_MAX_ENTRIES`; both accept "unlimited"), else the defaults apply. 0 caches nothing,
/// 2^64-1 is unlimited.
struct cache_options {
  std::optional<std::uint64_t> max_bytes = {};
  std::optional<std::uint64_t> max_entries = {};
};

struct cache_bounds {
  std::uint64_t max_bytes = default_cache_bytes;
  std::uint64_t max_entries = default_cache_entries;
};

/// Counters and contents of a client's import cache.
struct cache_stats {
  std::uint64_t hits = 0;          ///< opens without broker and driver
  std::uint64_t misses = 0;        ///< opens that sent a request to the broker
  std::uint64_t evictions = 0;     ///< mappings dropped because of the limits
  std::uint64_t kept_entries = 0;  ///< unused mappings
  std::uint64_t kept_bytes = 0;
  std::uint64_t used_entries = 0;  ///< mappings in use
  std::uint64_t used_bytes = 0;
};

struct connect_options {
  /// The broker's socket. Empty: `$GPUSHM_SOCKET`; else the one domain under `/run/gpushm/d`
  /// (several: `errc::ambiguous_domain`); else this user's (docs/cli.md, "Broker selection").
  std::string socket_path = {};
  /// How long to wait for a broker that is not running yet, including its welcome. Zero: do not
  /// wait for it to appear; its welcome is a request. `forever`: no limit.
  std::chrono::milliseconds timeout{0};
  /// Limit of each request, excluding waits for names: not a time that a call waits, but the end of
  /// a broker that does not answer. Zero: 30 s.
  std::chrono::milliseconds request_limit{30'000};
  cache_options cache = {};
  /// Cancels the wait for a broker with `errc::cancelled`, also when a later call of this client
  /// object reconnects.
  std::stop_token stop = {};
  /// Names that the caller is about to open. Requested together with the connection, so that the
  /// next open of each then only maps, without a request. As `client::prefetch`, but of any
  /// lifetime: each is a lease of this client, which keeps the memory of a leased segment until it
  /// is opened and closed, or until `trim`. A name that is not published, is a timeline's, or is
  /// memory bound to its exporter is left out, without an error.
  std::vector<std::string> prefetch = {};
};

struct create_options {
  /// Bytes; must not be 0.
  std::uint64_t size_bytes = 0;
  /// An ordinal as CUDA numbers it, also as "cuda:1", "GPU-<uuid>", "MIG-<uuid>", "host" or "cpu",
  /// or "auto": the first visible GPU, else the host.
  std::string device = "auto";
  gpushm::lifetime lifetime = gpushm::lifetime::leased;
  /// Size of one physical allocation, rounded up to the device's granularity; 0: a single
  /// allocation. Keep 0 for memory that is passed to other libraries: many query the driver for the
  /// range of an address (`cuMemGetAddressRange`) and see the first chunk only.
  std::uint64_t chunk_bytes = 0;
  /// Host segments only: use 2 MiB huge pages (errc::out_of_memory if the node has none free).
  bool huge_pages = false;
  /// Generation of a segment that may have the name, and that this process may remove: it keeps the
  /// name until `segment::publish` of the new one, which moves the name at once; 0: none.
  generation replaces = 0;
};

struct share_options {
  /// `persistent` only for memory that is shared as descriptors (chunks of virtual memory, memfds).
  gpushm::lifetime lifetime = gpushm::lifetime::leased;
  /// Up to 64 KiB, available to every client that opens the segment.
  std::span<const std::byte> metadata = {};
  /// False: only this client sees it until `segment::publish`.
  bool publish = true;
};

struct open_options {
  gpushm::access access = gpushm::access::read;
  /// How long to wait for the name to be published. Zero: do not wait.
  std::chrono::milliseconds timeout{0};
  /// The GPU that will use the memory, in the format of `create_options::device`; empty: the GPU
  /// that the memory is on, or the first visible GPU if CUDA does not show that one.
  std::string device = {};
  /// If not 0: `errc::size_mismatch` unless the segment has exactly this size.
  std::uint64_t expected_size_bytes = 0;
  /// Cancels the wait for the name immediately with `errc::cancelled`. A name that is already
  /// published is opened anyway.
  std::stop_token stop = {};
};

/// Kinds of events that a subscription reports. Values travel on the wire: never renumber.
enum class event_kind : std::uint8_t {
  published = GPUSHM_EVENT_PUBLISHED,
  /// The broker granted another connection a lease; its import may still fail.
  opened = GPUSHM_EVENT_OPENED,
  /// The last lease other than the creator's ended; not reported if no such lease was used, as
  /// after a failed import.
  released = GPUSHM_EVENT_RELEASED,
  removed = GPUSHM_EVENT_REMOVED,
  /// A process that created or held the segment ended without a goodbye message; it can no longer
  /// write (docs/sharing.md, "The fence").
  peer_died = GPUSHM_EVENT_PEER_DIED,
  /// Events were lost (slow subscriber, or a new broker): list again.
  resync = GPUSHM_EVENT_RESYNC,
  /// An operator dropped such a process's leases: it may still write.
  unfenced = GPUSHM_EVENT_UNFENCED,
};
[[nodiscard]] inline std::string_view to_string(event_kind value) noexcept {
  return glue::view(gpushm_event_kind_name(static_cast<gpushm_event_kind>(value)));
}

struct event {
  event_kind kind = event_kind::resync;
  std::string name;
  gpushm::generation generation = 0;
  std::uint32_t leases = 0;   ///< after the event
  std::int32_t peer_pid = 0;  ///< of the process that caused it, as the broker sees it; 0: unknown
};

namespace glue {

/// A C stop that is requested when a C++ one is. Null for a token that can never be requested.
class stop_bridge {
 public:
  explicit stop_bridge(const std::stop_token& token) {
    if (token.stop_possible()) {
      gpushm_stop* created = nullptr;
      check(gpushm_stop_create(&created));
      handle_.reset(created);
      callback_.emplace(token, request{created});
    }
  }
  [[nodiscard]] gpushm_stop* handle() const noexcept { return handle_.get(); }

 private:
  struct request {
    gpushm_stop* stop;
    void operator()() const noexcept { gpushm_stop_request(stop); }
  };
  std::unique_ptr<gpushm_stop, deleter<&gpushm_stop_free>> handle_;
  std::optional<std::stop_callback<request>> callback_;  // destroyed first
};

[[nodiscard]] inline gpushm_open_options options_of(const open_options& options,
                                                    const stop_bridge& stop) noexcept {
  auto result = sized<gpushm_open_options>();
  result.access = static_cast<gpushm_access>(options.access);
  result.device = text(options.device);
  result.expected_size_bytes = options.expected_size_bytes;
  result.stop = stop.handle();
  return result;
}

[[nodiscard]] inline event event_from(const gpushm_event& from) {
  event result;
  result.kind = static_cast<event_kind>(from.kind);
  result.name.assign(from.name, from.name_size);
  result.generation = from.generation;
  result.leases = from.leases;
  result.peer_pid = from.peer_pid;
  return result;
}

/// Takes ownership of `list`.
[[nodiscard]] inline std::vector<segment_info> list_from(gpushm_segment_list* list) {
  const std::unique_ptr<gpushm_segment_list, deleter<&gpushm_segment_list_free>> owned(list);
  std::vector<segment_info> result;
  result.reserve(gpushm_segment_list_size(list));
  for (std::size_t at = 0; at < gpushm_segment_list_size(list); ++at) {
    auto info = sized<gpushm_segment_info>();
    check(gpushm_segment_list_get(list, at, &info));
    result.push_back(info_from(info));
  }
  return result;
}

}  // namespace glue

/// A stream of events, until the object is destroyed. Move-only; a moved-from object is empty:
/// everything but destroying and assigning throws `errc::invalid_argument`.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class subscription {
 public:
  /// Takes ownership of `handle`.
  explicit subscription(gpushm_subscription* handle) noexcept : handle_(handle) {}

  /// Returns the next event, or nothing if `timeout` passes, or `stop` is requested, first. At most
  /// 1,024 unread events are queued; beyond that the oldest are dropped and a `resync` event
  /// reports it. Throws `errc::broker_gone` once, when the broker is gone and all earlier events
  /// were read; later calls resume on the new broker after a `resync`.
  [[nodiscard]] std::optional<event> next(std::chrono::milliseconds timeout,
                                          const std::stop_token& stop = {}) {
    const glue::stop_bridge bridge(stop);
    auto got = glue::sized<gpushm_event>();
    bool arrived = false;
    glue::check(
        gpushm_subscription_next(handle_.get(), timeout.count(), bridge.handle(), &got, &arrived));
    return arrived ? std::optional(glue::event_from(got)) : std::nullopt;
  }

  /// A descriptor for `poll`, `select` or `epoll`: readable when `dispatch` has work to do. Owned
  /// by this object and valid as long as this object exists: do not read or close it. To wait for a
  /// name in an event loop, subscribe to the name and open it when it is published.
  [[nodiscard]] int descriptor() {
    int descriptor = -1;
    glue::check(gpushm_subscription_descriptor(handle_.get(), &descriptor));
    return descriptor;
  }

  /// Calls `handler` with every unread event, on this thread, without waiting for more. Returns
  /// their number. `handler` may call gpushm, but not this object. An exception from it ends the
  /// call and is rethrown; that event counts as read. Throws as `next`.
  template <typename Handler>
  std::size_t dispatch(Handler&& handler) {
    struct context {
      std::remove_reference_t<Handler>& handler;
      std::exception_ptr thrown;
    } shared{handler, nullptr};
    const auto call = [](void* user, const gpushm_event* got) noexcept {
      auto& to = *static_cast<context*>(user);
      try {
        to.handler(glue::event_from(*got));
        return true;
      } catch (...) {
        to.thrown = std::current_exception();
        return false;
      }
    };
    std::size_t count = 0;
    const gpushm_errc code = gpushm_subscription_dispatch(handle_.get(), call, &shared, &count);
    if (shared.thrown) {
      std::rethrow_exception(shared.thrown);
    }
    glue::check(code);
    return count;
  }

 private:
  std::unique_ptr<gpushm_subscription, glue::deleter<&gpushm_subscription_close>> handle_;
};

/// The result of `open_many` for one name: either a segment or an error. Move-only.
class open_result {
 public:
  /// Precondition: `opened` is not empty.
  explicit open_result(segment opened) noexcept : outcome_(std::move(opened)) {}
  explicit open_result(const error& failure) noexcept : outcome_(failure) {}

  explicit operator bool() const noexcept { return outcome_.index() == 0; }
  /// Throws the error if there is one.
  [[nodiscard]] segment& value() & {
    if (const error* const why = failure()) {
      throw error(*why);
    }
    return std::get<segment>(outcome_);
  }
  [[nodiscard]] const segment& value() const& { return const_cast<open_result&>(*this).value(); }
  [[nodiscard]] segment&& value() && { return std::move(value()); }
  /// Null if there is a segment.
  [[nodiscard]] const error* failure() const noexcept { return std::get_if<error>(&outcome_); }

 private:
  std::variant<segment, error> outcome_;
};

/// A connection to a broker. Move-only; segments and subscriptions created with it stay usable
/// after it is destroyed (they share the connection). One background thread reads the socket and
/// never runs user code. When the broker dies, requests in flight throw `errc::broker_gone` and the
/// next request connects to its successor. If `gpushm-brokerd` and its keeper have died together,
/// another thread connects without a request and hands back segments (docs/broker.md). In a forked
/// child every call throws `errc::forked`. A moved-from client is empty: every call throws
/// `errc::invalid_argument`.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class client {
 public:
  /// Blocks until connected, at most `options.timeout`, or one request limit if that is zero.
  /// Throws `error`: broker_unreachable, ambiguous_domain, permission_denied, unsupported_version,
  /// too_many_connections, invalid_argument (a name), timed_out, cancelled.
  [[nodiscard]] static client connect(const connect_options& options = {}) {
    auto stop = std::make_unique<glue::stop_bridge>(options.stop);
    auto wanted = glue::sized<gpushm_connect_options>();
    wanted.socket_path = glue::text(options.socket_path);
    wanted.request_limit_ms = options.request_limit.count();
    wanted.stop = stop->handle();
    wanted.has_cache_max_bytes = options.cache.max_bytes.has_value();
    wanted.cache_max_bytes = options.cache.max_bytes.value_or(0);
    wanted.has_cache_max_entries = options.cache.max_entries.has_value();
    wanted.cache_max_entries = options.cache.max_entries.value_or(0);
    std::vector<gpushm_string> names;
    for (const std::string& name : options.prefetch) {
      names.push_back(glue::text(name));
    }
    wanted.prefetch = names.data();
    wanted.prefetch_count = names.size();
    gpushm_client* created = nullptr;
    glue::check(gpushm_client_connect(&wanted, options.timeout.count(), &created));
    client result(created);
    result.stop_ = std::move(stop);
    return result;
  }
  /// Takes ownership of `handle`.
  explicit client(gpushm_client* handle) noexcept : handle_(handle) {}

  /// Reserves the name, allocates the memory, maps it for reading and writing, and passes its
  /// descriptors to the broker. No other client sees the segment before `publish`; contents are
  /// zero on the host and undefined on GPUs. If a dead process holds the name, blocks until that
  /// process can no longer write, at most ten seconds. Throws `error`: invalid_argument,
  /// already_exists, writer_ending, quota_exceeded, out_of_memory, too_many_segments,
  /// too_many_descriptors, device_not_found, driver_unavailable, driver_error, broker_gone,
  /// timed_out, forked.
  [[nodiscard]] segment create(std::string_view name, const create_options& options) {
    auto wanted = glue::sized<gpushm_create_options>();
    wanted.size_bytes = options.size_bytes;
    wanted.device = glue::text(options.device);
    wanted.chunk_bytes = options.chunk_bytes;
    wanted.lifetime = static_cast<gpushm_lifetime>(options.lifetime);
    wanted.huge_pages = options.huge_pages;
    wanted.replaces = options.replaces;
    gpushm_segment* created = nullptr;
    glue::check(gpushm_client_create(handle_.get(), glue::text(name), &wanted, &created));
    return segment(created);
  }

  /// Turns memory that was allocated elsewhere in this process into a segment, and publishes it.
  /// The range may be anywhere in cudaMalloc memory, in an exportable pool, in virtual memory (also
  /// across chunks), or in a sealed memfd. `data()` of the result is `pointer`; the memory
  /// remains owned by its allocator. Finish the writes that readers rely on first.
  ///
  /// The broker keeps virtual memory and memfds alive. cudaMalloc and pool memory remains
  /// owned by this process: call `segment::unshare` before it is freed. The segment ends with its
  /// last `segment` here, with this process (later opens throw `errc::peer_died`), or when an
  /// import finds that the memory was freed (`errc::gone_or_replaced`). Legacy handles give
  /// importers the whole allocation, not only this range.
  ///
  /// Throws `error`: invalid_argument, not_exportable (naming the allocator and the remedy), and as
  /// `create`.
  [[nodiscard]] segment share(std::string_view name,
                              void* pointer,
                              std::uint64_t size_bytes,
                              const share_options& options = {}) {
    auto wanted = glue::sized<gpushm_share_options>();
    wanted.lifetime = static_cast<gpushm_lifetime>(options.lifetime);
    wanted.unpublished = !options.publish;
    wanted.metadata = options.metadata.data();
    wanted.metadata_size = options.metadata.size();
    gpushm_segment* created = nullptr;
    glue::check(gpushm_client_share(
        handle_.get(), glue::text(name), pointer, size_bytes, &wanted, &created));
    return segment(created);
  }

  /// Opens a published segment. Blocks until the name is published, at most `options.timeout`.
  /// Throws `error`: no_such_segment (not published in time), size_mismatch, device_not_visible,
  /// device_not_found, driver_unavailable, driver_error, too_many_descriptors, broker_gone,
  /// cancelled, forked; for memory bound to its exporter also peer_died, gone_or_replaced,
  /// pid_collision, peer_unreachable.
  [[nodiscard]] segment open(std::string_view name, const open_options& options = {}) {
    const glue::stop_bridge stop(options.stop);
    const gpushm_open_options wanted = glue::options_of(options, stop);
    gpushm_segment* opened = nullptr;
    glue::check(gpushm_client_open(
        handle_.get(), glue::text(name), &wanted, options.timeout.count(), &opened));
    return segment(opened);
  }

  /// As `open`, but returns nothing if the name is not published (in time), if its exporter has
  /// died, or if only dead processes that may still write to the segment hold it.
  [[nodiscard]] std::optional<segment> try_open(std::string_view name,
                                                const open_options& options = {}) {
    const glue::stop_bridge stop(options.stop);
    const gpushm_open_options wanted = glue::options_of(options, stop);
    gpushm_segment* opened = nullptr;
    glue::check(gpushm_client_try_open(
        handle_.get(), glue::text(name), &wanted, options.timeout.count(), &opened));
    return opened == nullptr ? std::nullopt : std::optional(segment(opened));
  }

  /// Opens any number of names with few round trips. Returns one result for each name, in order.
  /// `options.timeout` is for all of them together.
  [[nodiscard]] std::vector<open_result> open_many(std::span<const std::string> names,
                                                   const open_options& options = {}) {
    const glue::stop_bridge stop(options.stop);
    const gpushm_open_options wanted = glue::options_of(options, stop);
    std::vector<gpushm_string> texts;
    texts.reserve(names.size());
    for (const std::string& name : names) {
      texts.push_back(glue::text(name));
    }
    std::vector<open_result> results;
    results.reserve(names.size());
    std::vector<gpushm_open_result> got(names.size());
    glue::check(gpushm_client_open_many(
        handle_.get(), texts.data(), texts.size(), &wanted, options.timeout.count(), got.data()));
    for (const gpushm_open_result& each : got) {  // does not throw from here on
      results.push_back(each.segment != nullptr ? open_result(segment(each.segment))
                                                : open_result(error(each.failure)));
    }
    return results;
  }

  /// Requests in advance what opens of persistent segments under `prefix` need from the broker: the
  /// next open of each then only maps, without a request. Each prefetched segment is a lease of
  /// this client, which keeps the segment's descriptors until `trim` or until the segment, the
  /// client or the broker ends. Skips segments that this client already has, memory bound to its
  /// exporter, and segments of more than 253 chunks; keeps at most 4,096 segments and a quarter of
  /// the descriptors that the process may open, and nothing if the cache keeps nothing. Blocks for
  /// several round trips, at most one request limit. Returns the number of segments added. Throws
  /// broker_gone, timed_out, forked; segments received before the failure are kept.
  std::size_t prefetch(std::string_view prefix = {}) {
    std::size_t count = 0;
    glue::check(gpushm_client_prefetch(handle_.get(), glue::text(prefix), &count));
    return count;
  }

  /// Lists published segments, and this client's unpublished ones, whose names start with `prefix`,
  /// sorted by name.
  [[nodiscard]] std::vector<segment_info> list(std::string_view prefix = {}) {
    gpushm_segment_list* list = nullptr;
    glue::check(gpushm_client_list(handle_.get(), glue::text(prefix), &list));
    return glue::list_from(list);
  }

  /// Throws `errc::no_such_segment`.
  [[nodiscard]] segment_info stat(std::string_view name) {
    auto info = glue::sized<gpushm_segment_info>();
    glue::check(gpushm_client_stat(handle_.get(), glue::text(name), &info));
    return glue::info_from(info);
  }
  /// As above, of this generation only. Throws also gone_or_replaced (another segment has the name
  /// now), invalid_argument (0).
  [[nodiscard]] segment_info stat(std::string_view name, gpushm::generation number) {
    auto info = glue::sized<gpushm_segment_info>();
    glue::check(gpushm_client_stat_generation(handle_.get(), glue::text(name), number, &info));
    return glue::info_from(info);
  }

  /// Removes the name; the memory is freed with the last lease. Allowed to the creator's
  /// connection, the creator's uid and the broker's uid. Throws no_such_segment, permission_denied.
  void remove(std::string_view name) {
    glue::check(gpushm_client_remove(handle_.get(), glue::text(name)));
  }
  /// As above, if this generation has the name: never removes a segment that has replaced it.
  /// Throws also gone_or_replaced (another segment has the name now), invalid_argument (0).
  void remove(std::string_view name, gpushm::generation number) {
    glue::check(gpushm_client_remove_generation(handle_.get(), glue::text(name), number));
  }

  /// For operators: ends the segment's leases whose connections ended without a goodbye message and
  /// whose fence is still pending, though their processes may still write. Subscribers receive
  /// `unfenced`. Allowed as `remove`. Throws no_such_segment, permission_denied, invalid_argument
  /// (no lease of the segment waits for a fence).
  void unfence(std::string_view name) {
    glue::check(gpushm_client_unfence(handle_.get(), glue::text(name)));
  }

  /// Subscribes to events of segments whose names start with `prefix`, from now on.
  [[nodiscard]] subscription subscribe(std::string_view prefix = {}) {
    gpushm_subscription* created = nullptr;
    glue::check(gpushm_client_subscribe(handle_.get(), glue::text(prefix), nullptr, &created));
    return subscription(created);
  }
  /// As above; `present` receives the segments that already exist, as from `list`: no segment is
  /// missed between the two, but the first events may be about segments in it.
  [[nodiscard]] subscription subscribe(std::string_view prefix,
                                       std::vector<segment_info>& present) {
    gpushm_segment_list* list = nullptr;
    gpushm_subscription* created = nullptr;
    glue::check(gpushm_client_subscribe(handle_.get(), glue::text(prefix), &list, &created));
    subscription result(created);
    present = glue::list_from(list);
    return result;
  }

  [[nodiscard]] broker_info broker() const {
    auto info = glue::sized<gpushm_broker_info>();
    glue::check(gpushm_client_broker(handle_.get(), &info));
    return glue::info_from(info);
  }

  /// Counters and contents of this client's import cache. Reads memory only.
  [[nodiscard]] gpushm::cache_stats cache_stats() const {
    auto got = glue::sized<gpushm_cache_stats>();
    glue::check(gpushm_client_cache_stats(handle_.get(), &got));
    return {got.hits,
            got.misses,
            got.evictions,
            got.kept_entries,
            got.kept_bytes,
            got.used_entries,
            got.used_bytes};
  }
  /// Unmaps unused mappings. Blocks for the driver.
  void trim() { glue::check(gpushm_client_trim(handle_.get())); }

  /// Owned by this object; null for an empty one.
  [[nodiscard]] gpushm_client* handle() const noexcept { return handle_.get(); }

 private:
  std::unique_ptr<glue::stop_bridge> stop_;
  std::unique_ptr<gpushm_client, glue::deleter<&gpushm_client_close>> handle_;
};

enum class log_level : std::uint8_t {
  debug = GPUSHM_LOG_DEBUG,
  info = GPUSHM_LOG_INFO,
  warning = GPUSHM_LOG_WARNING,
  error = GPUSHM_LOG_ERROR,
};

/// Sends the library's log lines (mostly warnings) to `sink`; an empty function discards them, the
/// default. Thread-safe. `sink` is called from any thread, without a lock of the library held. It
/// may call gpushm, but must not destroy a client or send a request to a broker in this process.
/// Its exceptions are ignored.
inline void set_log_sink(std::function<void(log_level, std::string_view)> sink) {
  using function = std::function<void(log_level, std::string_view)>;
  if (!sink) {
    glue::check(gpushm_set_log_sink(nullptr, nullptr, nullptr));
    return;
  }
  auto kept = std::make_unique<function>(std::move(sink));
  const auto call = [](void* user, gpushm_log_level level, gpushm_string line) noexcept {
    try {
      (*static_cast<const function*>(user))(static_cast<log_level>(level), glue::view(line));
    } catch (...) {  // NOLINT(bugprone-empty-catch): it must not break what it reports on
    }
  };
  const auto destroy = [](void* user) noexcept {
    const std::unique_ptr<function> ended(static_cast<function*>(user));
  };
  glue::check(gpushm_set_log_sink(call, kept.release(), destroy));
}

}  // namespace v1
}  // namespace gpushm
