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
  /// Ends the wait for a broker, also one that a later call of the client connects to again, as
  /// long as the client object lives: that call throws `errc::cancelled`.
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
  published = GPUSHM_EVENT_PUBLISHED,
  /// The broker granted another connection a lease; its import may still fail.
  opened = GPUSHM_EVENT_OPENED,
  /// The last lease other than the creator's ended; not if no such lease was used: an import that
  /// failed is followed by no `released`.
  released = GPUSHM_EVENT_RELEASED,
  removed = GPUSHM_EVENT_REMOVED,
  /// A process that created or held the segment ended without a goodbye; it can write nothing any
  /// more (docs/sharing.md, "The fence").
  peer_died = GPUSHM_EVENT_PEER_DIED,
  /// Events were lost (slow subscriber, or a new broker): list again.
  resync = GPUSHM_EVENT_RESYNC,
  /// An operator has given up what such a process left: it may still be written.
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

/// A stop of C that is requested when one of C++ is. Null for a token that nobody can request.
class stop_bridge {
 public:
  explicit stop_bridge(const std::stop_token& token) {
    if (token.stop_possible()) {
      gpushm_stop* made = nullptr;
      check(gpushm_stop_create(&made));
      handle_.reset(made);
      callback_.emplace(token, request{made});
    }
  }
  [[nodiscard]] gpushm_stop* handle() const noexcept { return handle_.get(); }

 private:
  struct request {
    gpushm_stop* stop;
    void operator()() const noexcept { gpushm_stop_request(stop); }
  };
  std::unique_ptr<gpushm_stop, ender<&gpushm_stop_free>> handle_;
  std::optional<std::stop_callback<request>> callback_;  // goes first
};

[[nodiscard]] inline gpushm_open_options options_of(const open_options& options,
                                                    const stop_bridge& stop) noexcept {
  auto made = sized<gpushm_open_options>();
  made.access = static_cast<gpushm_access>(options.access);
  made.timeout_ms = options.timeout.count();
  made.device = text(options.device);
  made.expected_size_bytes = options.expected_size_bytes;
  made.stop = stop.handle();
  return made;
}

[[nodiscard]] inline event event_from(const gpushm_event& from) {
  event made;
  made.kind = static_cast<event_kind>(from.kind);
  made.name.assign(from.name, from.name_size);
  made.generation = from.generation;
  made.leases = from.leases;
  made.peer_pid = from.peer_pid;
  return made;
}

/// Takes `list` over.
[[nodiscard]] inline std::vector<segment_info> list_from(gpushm_segment_list* list) {
  const std::unique_ptr<gpushm_segment_list, ender<&gpushm_segment_list_free>> owned(list);
  std::vector<segment_info> made;
  made.reserve(gpushm_segment_list_size(list));
  for (std::size_t at = 0; at < gpushm_segment_list_size(list); ++at) {
    auto info = sized<gpushm_segment_info>();
    check(gpushm_segment_list_get(list, at, &info));
    made.push_back(info_from(info));
  }
  return made;
}

}  // namespace glue

/// A stream of events; ends with the object. Move-only; a moved-from object is empty: everything
/// but destroying and assigning throws `errc::invalid_argument`. Distinct objects: safe. Shared
/// objects: one thread at a time.
class subscription {
 public:
  /// Takes `handle` over.
  explicit subscription(gpushm_subscription* handle) noexcept : handle_(handle) {}

  /// The next event, or nothing when `timeout` passes, or `stop` is asked to, first. At most 1,024
  /// unread events are kept; then the oldest are dropped and a `resync` says so. Throws
  /// `errc::broker_gone` once, when the broker is gone and everything before has been read; later
  /// calls resume on the new broker after a `resync`.
  [[nodiscard]] std::optional<event> next(std::chrono::milliseconds timeout,
                                          const std::stop_token& stop = {}) {
    const glue::stop_bridge bridge(stop);
    auto got = glue::sized<gpushm_event>();
    bool arrived = false;
    glue::check(
        gpushm_subscription_next(handle_.get(), timeout.count(), bridge.handle(), &got, &arrived));
    return arrived ? std::optional(glue::event_from(got)) : std::nullopt;
  }

  /// For `poll` and its kin: readable when `dispatch` has something to do. As long as the object;
  /// neither read nor close it. An open that waits for its name is an event loop's in this way:
  /// subscribe to the name, and open it when it is published.
  [[nodiscard]] int descriptor() {
    int descriptor = -1;
    glue::check(gpushm_subscription_descriptor(handle_.get(), &descriptor));
    return descriptor;
  }

  /// Calls `handler` with every unread event, on this thread, and waits for none. Returns how many
  /// they were. `handler` may call gpushm, but nothing of this object. What it throws ends the call
  /// and is thrown on; that event counts as read. Throws as `next`.
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
  std::unique_ptr<gpushm_subscription, glue::ender<&gpushm_subscription_close>> handle_;
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
class client {
 public:
  /// Blocks until connected, at most `options.timeout`, or one request timeout if that is zero.
  /// Throws `error`: broker_unreachable, ambiguous_domain, permission_denied, unsupported_version,
  /// too_many_connections.
  [[nodiscard]] static client connect(const connect_options& options = {}) {
    auto stop = std::make_unique<glue::stop_bridge>(options.stop);
    auto wanted = glue::sized<gpushm_connect_options>();
    wanted.socket_path = glue::text(options.socket_path);
    wanted.timeout_ms = options.timeout.count();
    wanted.request_timeout_ms = options.request_timeout.count();
    wanted.stop = stop->handle();
    wanted.has_cache_max_bytes = options.cache.max_bytes.has_value();
    wanted.cache_max_bytes = options.cache.max_bytes.value_or(0);
    wanted.has_cache_max_entries = options.cache.max_entries.has_value();
    wanted.cache_max_entries = options.cache.max_entries.value_or(0);
    gpushm_client* made = nullptr;
    glue::check(gpushm_client_connect(&wanted, &made));
    client result(made);
    result.stop_ = std::move(stop);
    return result;
  }
  /// Takes `handle` over.
  explicit client(gpushm_client* handle) noexcept : handle_(handle) {}

  /// Reserves the name, allocates and maps the memory for reading and writing, and hands its
  /// descriptors to the broker. Nobody else sees it before `publish`; contents are zero on the host
  /// and undefined on GPUs. Where a dead process had the name, waits until that can write nothing
  /// any more, ten seconds at most. Throws `error`: invalid_argument, already_exists,
  /// writer_ending, quota_exceeded, out_of_memory, too_many_segments, too_many_descriptors,
  /// device_not_found, driver_unavailable, driver_error, broker_gone, forked.
  [[nodiscard]] segment create(std::string_view name, const create_options& options) {
    auto wanted = glue::sized<gpushm_create_options>();
    wanted.size_bytes = options.size_bytes;
    wanted.device = glue::text(options.device);
    wanted.chunk_bytes = options.chunk_bytes;
    wanted.lifetime = static_cast<gpushm_lifetime>(options.lifetime);
    wanted.huge_pages = options.huge_pages;
    gpushm_segment* made = nullptr;
    glue::check(gpushm_client_create(handle_.get(), glue::text(name), &wanted, &made));
    return segment(made);
  }

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
                              const share_options& options = {}) {
    auto wanted = glue::sized<gpushm_share_options>();
    wanted.lifetime = static_cast<gpushm_lifetime>(options.lifetime);
    wanted.unpublished = !options.publish;
    wanted.metadata = options.metadata.data();
    wanted.metadata_size = options.metadata.size();
    gpushm_segment* made = nullptr;
    glue::check(
        gpushm_client_share(handle_.get(), glue::text(name), pointer, size_bytes, &wanted, &made));
    return segment(made);
  }

  /// Opens a published segment. Blocks while the name is not there, at most `options.timeout`.
  /// Throws `error`: no_such_segment (not there in time), size_mismatch, device_not_visible,
  /// device_not_found, driver_unavailable, driver_error, too_many_descriptors, broker_gone, forked;
  /// for memory that stays its exporter's also peer_died, gone_or_replaced, pid_collision,
  /// peer_unreachable.
  [[nodiscard]] segment open(std::string_view name, const open_options& options = {}) {
    const glue::stop_bridge stop(options.stop);
    const gpushm_open_options wanted = glue::options_of(options, stop);
    gpushm_segment* opened = nullptr;
    glue::check(gpushm_client_open(handle_.get(), glue::text(name), &wanted, &opened));
    return segment(opened);
  }

  /// As `open`, but a name that is not there (in time), whose exporter has died, or that only dead
  /// processes had that may still write it, is an empty result and not an error.
  [[nodiscard]] std::optional<segment> try_open(std::string_view name,
                                                const open_options& options = {}) {
    const glue::stop_bridge stop(options.stop);
    const gpushm_open_options wanted = glue::options_of(options, stop);
    gpushm_segment* opened = nullptr;
    glue::check(gpushm_client_try_open(handle_.get(), glue::text(name), &wanted, &opened));
    return opened == nullptr ? std::nullopt : std::optional(segment(opened));
  }

  /// Opens any number of names with few round trips. One result for each name, in order. `timeout`
  /// is for all of them together.
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
    glue::check(
        gpushm_client_open_many(handle_.get(), texts.data(), texts.size(), &wanted, got.data()));
    for (const gpushm_open_result& each : got) {  // nothing can fail any more
      results.push_back(each.segment != nullptr ? open_result(segment(each.segment))
                                                : open_result(error(each.failure)));
    }
    return results;
  }

  /// Asks for what opens of persistent segments under `prefix` will need of the broker: the next
  /// open of each then asks nobody, and only maps. Each is a lease of this client from now on,
  /// which goes back with `trim`, with the end of the segment, of the client, or of the broker, and
  /// holds its descriptors. Leaves out what this client has already, memory that stays its
  /// exporter's, and what has more than 253 chunks; keeps at most 4,096 segments and a quarter of
  /// the descriptors that the process may open, and nothing where the cache keeps nothing. Blocks
  /// for some round trips, at most one request timeout. Returns how many there are more. Throws
  /// broker_gone, timed_out, forked; what has come by then stays.
  std::size_t prefetch(std::string_view prefix = {}) {
    std::size_t count = 0;
    glue::check(gpushm_client_prefetch(handle_.get(), glue::text(prefix), &count));
    return count;
  }

  /// Published segments, and own unpublished ones, whose names start with `prefix`, sorted by name.
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

  /// Takes the name away; memory goes with the last lease. Allowed to the creator's connection, the
  /// creator's uid and the broker's uid. Throws no_such_segment, permission_denied.
  void remove(std::string_view name) {
    glue::check(gpushm_client_remove(handle_.get(), glue::text(name)));
  }

  /// Ends the leases on the segment whose connections have ended without a goodbye and whose fence
  /// has not come, though their processes may still write it: for operators. Subscribers hear
  /// `unfenced`. Allowed as `remove`. Throws no_such_segment, permission_denied, invalid_argument
  /// (nothing of it waits for a fence).
  void unfence(std::string_view name) {
    glue::check(gpushm_client_unfence(handle_.get(), glue::text(name)));
  }

  /// Events of segments whose names start with `prefix`, from now on.
  [[nodiscard]] subscription subscribe(std::string_view prefix = {}) {
    gpushm_subscription* made = nullptr;
    glue::check(gpushm_client_subscribe(handle_.get(), glue::text(prefix), nullptr, &made));
    return subscription(made);
  }
  /// The same, and `present` gets the segments that are there already, as `list` gives them: none
  /// is missed between the two, but the first events may be of segments that are in it.
  [[nodiscard]] subscription subscribe(std::string_view prefix,
                                       std::vector<segment_info>& present) {
    gpushm_segment_list* list = nullptr;
    gpushm_subscription* made = nullptr;
    glue::check(gpushm_client_subscribe(handle_.get(), glue::text(prefix), &list, &made));
    subscription result(made);
    present = glue::list_from(list);
    return result;
  }

  [[nodiscard]] broker_info broker() const {
    auto info = glue::sized<gpushm_broker_info>();
    glue::check(gpushm_client_broker(handle_.get(), &info));
    return glue::info_from(info);
  }

  /// What the import cache of this client did and has. Reads memory only.
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
  /// Ends the mappings that nobody uses. Blocks for the driver.
  void trim() { glue::check(gpushm_client_trim(handle_.get())); }

  /// This object's still; null for an empty one.
  [[nodiscard]] gpushm_client* handle() const noexcept { return handle_.get(); }

 private:
  std::unique_ptr<glue::stop_bridge> stop_;
  std::unique_ptr<gpushm_client, glue::ender<&gpushm_client_close>> handle_;
};

enum class log_level : std::uint8_t {
  debug = GPUSHM_LOG_DEBUG,
  info = GPUSHM_LOG_INFO,
  warning = GPUSHM_LOG_WARNING,
  error = GPUSHM_LOG_ERROR,
};

/// Sends the library's log lines (warnings, mostly) to `sink` instead of nowhere; an empty function
/// turns them off again. Thread-safe; `sink` may be called from any thread, without a lock of the
/// library, and may call gpushm; but not end a client, nor ask a broker of this process. What it
/// throws is lost.
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
