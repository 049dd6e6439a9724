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

/// Limits of the mappings that are cached while unused. Unset members, and the values 0 and 2^64-1:
/// as `gpushm_connect_options`.
struct cache_options {
  std::optional<std::uint64_t> max_bytes = {};
  std::optional<std::uint64_t> max_entries = {};
};

struct cache_bounds {
  std::uint64_t max_bytes = default_cache_bytes;
  std::uint64_t max_entries = default_cache_entries;
};

/// Counters and contents of a client's import cache. As `gpushm_cache_stats`.
struct cache_stats {
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;
  std::uint64_t evictions = 0;
  std::uint64_t kept_entries = 0;
  std::uint64_t kept_bytes = 0;
  std::uint64_t used_entries = 0;
  std::uint64_t used_bytes = 0;
};

/// Members without a comment are as in `gpushm_connect_options`.
struct connect_options {
  std::string socket_path = {};
  /// How long to wait for a broker that is not running yet; `forever`: no limit.
  std::chrono::milliseconds timeout{0};
  std::chrono::milliseconds request_limit{30'000};
  cache_options cache = {};
  std::stop_token stop = {};
  std::vector<std::string> prefetch = {};
};

/// The members are those of `gpushm_create_options`.
struct create_options {
  std::uint64_t size_bytes = 0;
  std::string device = "auto";
  gpushm::lifetime lifetime = gpushm::lifetime::leased;
  std::uint64_t chunk_bytes = 0;
  bool huge_pages = false;
  generation replaces = 0;
};

/// Members without a comment are as in `gpushm_share_options`.
struct share_options {
  gpushm::lifetime lifetime = gpushm::lifetime::leased;
  std::span<const std::byte> metadata = {};
  /// If false, only this client sees the segment until `segment::publish`.
  bool publish = true;
};

/// Members without a comment are as in `gpushm_open_options`.
struct open_options {
  gpushm::access access = gpushm::access::read;
  /// How long to wait for the name to be published. Zero: do not wait.
  std::chrono::milliseconds timeout{0};
  std::string device = {};
  std::uint64_t expected_size_bytes = 0;
  std::stop_token stop = {};
};

/// As `gpushm_event_kind`. Values travel on the wire: never renumber.
enum class event_kind : std::uint8_t {
  published = GPUSHM_EVENT_PUBLISHED,
  opened = GPUSHM_EVENT_OPENED,
  released = GPUSHM_EVENT_RELEASED,
  removed = GPUSHM_EVENT_REMOVED,
  peer_died = GPUSHM_EVENT_PEER_DIED,
  resync = GPUSHM_EVENT_RESYNC,
  unfenced = GPUSHM_EVENT_UNFENCED,
  alias_moved = GPUSHM_EVENT_ALIAS_MOVED,
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
  loss_cause loss = loss_cause::none;  ///< of `removed`: its GPU was lost, and the memory with it
  std::uint32_t xid = 0;               ///< the Xid, if that is the cause
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

[[nodiscard]] inline event event_from(const gpushm_event& source) {
  event result;
  result.kind = static_cast<event_kind>(source.kind);
  result.name.assign(source.name, source.name_size);
  result.generation = source.generation;
  result.leases = source.leases;
  result.peer_pid = source.peer_pid;
  result.loss = static_cast<loss_cause>(source.loss);
  result.xid = source.xid;
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

  /// Returns the next event, or nullopt if `timeout` passes, or `stop` is requested, first. As
  /// `gpushm_subscription_next`.
  [[nodiscard]] std::optional<event> next(std::chrono::milliseconds timeout,
                                          const std::stop_token& stop = {}) {
    const glue::stop_bridge bridge(stop);
    auto got = glue::sized<gpushm_event>();
    bool arrived = false;
    glue::check(
        gpushm_subscription_next(handle_.get(), timeout.count(), bridge.handle(), &got, &arrived));
    return arrived ? std::optional(glue::event_from(got)) : std::nullopt;
  }

  /// A descriptor for `poll`, `select` or `epoll`: readable when `dispatch` has work to do. As
  /// `gpushm_subscription_descriptor`.
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
    const auto call = [](void* user, const gpushm_event* event) noexcept {
      auto& to = *static_cast<context*>(user);
      try {
        to.handler(glue::event_from(*event));
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
  /// Connects to a broker. As `gpushm_client_connect`.
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

  /// Creates a segment, which no other client sees before `segment::publish`. As
  /// `gpushm_client_create`.
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

  /// Turns memory that was allocated elsewhere in this process into a segment, and publishes it. As
  /// `gpushm_client_share`.
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

  /// Opens a published segment. As `gpushm_client_open`, with `options.timeout`.
  [[nodiscard]] segment open(std::string_view name, const open_options& options = {}) {
    const glue::stop_bridge stop(options.stop);
    const gpushm_open_options wanted = glue::options_of(options, stop);
    gpushm_segment* opened = nullptr;
    glue::check(gpushm_client_open(
        handle_.get(), glue::text(name), &wanted, options.timeout.count(), &opened));
    return segment(opened);
  }

  /// As `open`, but returns nullopt where `gpushm_client_try_open` returns NULL.
  [[nodiscard]] std::optional<segment> try_open(std::string_view name,
                                                const open_options& options = {}) {
    const glue::stop_bridge stop(options.stop);
    const gpushm_open_options wanted = glue::options_of(options, stop);
    gpushm_segment* opened = nullptr;
    glue::check(gpushm_client_try_open(
        handle_.get(), glue::text(name), &wanted, options.timeout.count(), &opened));
    return opened == nullptr ? std::nullopt : std::optional(segment(opened));
  }

  /// Opens any number of names with few round trips. Returns one result for each name, in order. As
  /// `gpushm_client_open_many`.
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

  /// Requests in advance what opens of persistent segments under `prefix` need from the broker.
  /// Returns the number of segments added. As `gpushm_client_prefetch`.
  std::size_t prefetch(std::string_view prefix = {}) {
    std::size_t count = 0;
    glue::check(gpushm_client_prefetch(handle_.get(), glue::text(prefix), &count));
    return count;
  }

  /// Lists segments whose names start with `prefix`. As `gpushm_client_list`.
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
  /// As above, of this generation only. As `gpushm_client_stat_generation`.
  [[nodiscard]] segment_info stat(std::string_view name, gpushm::generation number) {
    auto info = glue::sized<gpushm_segment_info>();
    glue::check(gpushm_client_stat_generation(handle_.get(), glue::text(name), number, &info));
    return glue::info_from(info);
  }

  /// Removes the name; the memory is freed with the last lease. As `gpushm_client_remove`.
  void remove(std::string_view name) {
    glue::check(gpushm_client_remove(handle_.get(), glue::text(name)));
  }
  /// As above, if this generation has the name. As `gpushm_client_remove_generation`.
  void remove(std::string_view name, gpushm::generation number) {
    glue::check(gpushm_client_remove_generation(handle_.get(), glue::text(name), number));
  }

  /// For operators: ends leases of dead processes that may still write. As `gpushm_client_unfence`.
  void unfence(std::string_view name) {
    glue::check(gpushm_client_unfence(handle_.get(), glue::text(name)));
  }

  /// Subscribes to events of segments whose names start with `prefix`, from now on.
  [[nodiscard]] subscription subscribe(std::string_view prefix = {}) {
    gpushm_subscription* created = nullptr;
    glue::check(gpushm_client_subscribe(handle_.get(), glue::text(prefix), nullptr, &created));
    return subscription(created);
  }
  /// As above; `present` receives the segments that already exist. As `gpushm_client_subscribe`.
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

/// Sends the library's log lines to `sink`; an empty function discards them, the default. As
/// `gpushm_set_log_sink`, but exceptions of `sink` are ignored.
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
