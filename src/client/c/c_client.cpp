// SPDX-License-Identifier: Apache-2.0
// The functions of gpushm.h for clients and for information from a broker.
#include <chrono>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/report/c_interface.hpp"
#include "client/c/c_handles.hpp"
#include "gpushm/client.hpp"
#include "gpushm/gpushm.h"

using gpushm::base::bytes_in;
using gpushm::base::c_call;
using gpushm::base::enum_in;
using gpushm::base::options_in;
using gpushm::base::out;
using gpushm::base::result_out;
using gpushm::base::text_in;
using gpushm::base::text_out;
using gpushm::base::throw_invalid;
using gpushm::base::timeout_in;

namespace gpushm::client_detail {

namespace {

/// Calls `make` with the client and the name; its result becomes the caller's.
template <typename Make>
gpushm_errc segment_out(const gpushm_client* client,
                        gpushm_string name,
                        std::string_view operation,
                        gpushm_segment** where,
                        Make&& make) {
  return c_call([&] {
    const auto called = text_in(name, operation);
    auto& impl = usable(client, operation, called);
    gpushm_segment*& result = out(where, operation);
    result = make(impl, called).release();
  });
}

/// Functions that find something, unless they are to wait for it.
constexpr std::chrono::milliseconds no_wait{0};

connect_options options_from(const gpushm_connect_options* given, std::int64_t timeout_ms) {
  const auto from = options_in(given, "connect");
  connect_options result;
  result.socket_path = text_in(from.socket_path, "connect");
  result.timeout = timeout_in(timeout_ms, "connect", no_wait);
  if (from.request_limit_ms < 0) {
    throw_invalid(
        "connect",
        "the limit of a request is " + std::to_string(from.request_limit_ms) + " milliseconds",
        "pass 0 for the usual one, or GPUSHM_FOREVER for none");
  }
  if (from.request_limit_ms != 0) {
    result.request_limit = std::chrono::milliseconds(from.request_limit_ms);
  }
  result.stop = token_of(from.stop);
  if (from.has_cache_max_bytes) {
    result.cache.max_bytes = from.cache_max_bytes;
  }
  if (from.has_cache_max_entries) {
    result.cache.max_entries = from.cache_max_entries;
  }
  if (from.prefetch == nullptr && from.prefetch_count != 0) {
    throw error(errc::invalid_argument,
                "connect",
                result.socket_path,
                "the names to prefetch are NULL",
                "pass an array of them");
  }
  for (std::size_t i = 0; i != from.prefetch_count; ++i) {
    result.prefetch.emplace_back(text_in(from.prefetch[i], "connect"));
  }
  return result;
}

create_options options_from(const gpushm_create_options* given) {
  const auto from = options_in(given, "create");
  create_options result;
  result.size_bytes = from.size_bytes;
  if (const auto device = text_in(from.device, "create"); !device.empty()) {
    result.device = device;
  }
  result.chunk_bytes = from.chunk_bytes;
  result.lifetime = enum_in(from.lifetime, lifetime::persistent, "create");
  result.huge_pages = from.huge_pages;
  result.replaces = from.replaces;
  return result;
}

share_options options_from(const gpushm_share_options* given) {
  const auto from = options_in(given, "share");
  share_options result;
  result.lifetime = enum_in(from.lifetime, lifetime::persistent, "share");
  result.publish = !from.unpublished;
  result.metadata = bytes_in(from.metadata, from.metadata_size, "share");
  return result;
}

void info_out(const wire::segment& segment,
              gpushm_segment_info* where,
              std::string_view operation) {
  /// Larger values are not plausible: 10,000 days.
  constexpr std::uint64_t longest_ms = 10'000ULL * 24 * 3'600 * 1'000;
  gpushm_segment_info result{};
  result.generation = segment.generation;
  result.size_bytes = segment.size_bytes;
  result.allocated_bytes = segment.allocated_bytes;
  result.metadata_bytes = segment.metadata_bytes;
  result.ending_for_ms =
      static_cast<std::int64_t>(std::min<std::uint64_t>(segment.ending_ms, longest_ms));
  result.chunks = segment.chunk_count;
  result.leases = segment.leases;
  result.ending = segment.ending;
  result.ending_pid = segment.ending_pid;
  result.ending_waits = static_cast<gpushm_fence_wait>(segment.ending_waits);
  result.creator_uid = segment.creator_uid;
  result.creator_pid = segment.creator_pid;
  result.backend = static_cast<gpushm_backend>(segment.backend);
  result.lifetime = static_cast<gpushm_lifetime>(segment.lifetime);
  result.state = static_cast<gpushm_segment_state>(segment.state);
  result.published = segment.published;
  result.creator_alive = segment.creator_alive;
  text_out(segment.name, result.name, result.name_size);
  result.device = device_out(segment.device);
  result_out(result, where, operation);
}

/// 0 would mean any generation: a variable that was never set must not remove another segment.
void check_generation(std::uint64_t generation, std::string_view operation, std::string_view name) {
  if (generation == 0) {
    throw error(errc::invalid_argument,
                operation,
                name,
                "no segment has the generation 0",
                "pass the generation of a segment (gpushm_segment_generation, an info's)");
  }
}

}  // namespace

open_options open_options_from(const gpushm_open_options* given, std::int64_t timeout_ms) {
  const auto from = options_in(given, "open");
  open_options result;
  result.access = enum_in(from.access, access::read_write, "open");
  result.timeout = timeout_in(timeout_ms, "open", no_wait);
  result.device = text_in(from.device, "open");
  result.expected_size_bytes = from.expected_size_bytes;
  result.stop = token_of(from.stop);
  return result;
}

gpushm_device device_out(const device_id& device) {
  gpushm_device result{};
  result.kind = static_cast<gpushm_device_kind>(device.kind);
  result.minor = device.minor;
  text_out(device.uuid, result.uuid, result.uuid_size);
  text_out(device.pci_address, result.pci_address, result.pci_address_size);
  return result;
}

}  // namespace gpushm::client_detail

using gpushm::client_detail::info_out;
using gpushm::client_detail::open_options_from;
using gpushm::client_detail::options_from;
using gpushm::client_detail::segment_out;
using gpushm::client_detail::usable;

// ---- cancellation ----

gpushm_errc gpushm_stop_create(gpushm_stop** stop) {
  return c_call([&] {
    gpushm_stop*& result = out(stop, "stop");
    result = std::make_unique<gpushm_stop>().release();
  });
}
void gpushm_stop_request(gpushm_stop* stop) {
  if (stop != nullptr) {
    stop->source.request_stop();
  }
}
void gpushm_stop_free(gpushm_stop* stop) {
  const std::unique_ptr<gpushm_stop> ended(stop);
}

// ---- connections ----

gpushm_errc gpushm_client_connect(const gpushm_connect_options* options,
                                  int64_t timeout_ms,
                                  gpushm_client** client) {
  return c_call([&] {
    gpushm_client*& result = out(client, "connect");
    auto impl =
        std::make_shared<gpushm::client_detail::client_impl>(options_from(options, timeout_ms));
    result = std::make_unique<gpushm_client>(
                 gpushm_client{std::make_shared<gpushm::client_detail::timelines>(std::move(impl))})
                 .release();
  });
}

gpushm_errc gpushm_client_dup(const gpushm_client* client, gpushm_client** dup) {
  return c_call([&] {
    static_cast<void>(usable(client, "dup"));
    gpushm_client*& result = out(dup, "dup");
    result = std::make_unique<gpushm_client>(*client).release();
  });
}

void gpushm_client_close(gpushm_client* client) {
  const std::unique_ptr<gpushm_client> ended(client);
  if (!ended) {
    return;
  }
  const gpushm::base::held_log_lines lines;
  if (ended->timelines->client().forked()) {
    gpushm::client_detail::leak(ended->timelines);
  }
  ended->timelines.reset();
}

gpushm_errc gpushm_client_broker(gpushm_client* client, gpushm_broker_info* info) {
  return c_call([&] {
    const auto connected = usable(client, "broker").broker();
    const gpushm::broker_info& from = connected->broker();
    gpushm_broker_info result{};
    result.max_segments = from.max_segments;
    result.quota_bytes = from.quota_bytes;
    result.fence_delay_ms = from.fence_delay.count();
    result.protocol_version = from.protocol_version;
    result.pid = from.pid;
    result.fence = static_cast<gpushm_fence>(from.fence);
    std::copy(from.epoch.begin(), from.epoch.end(), std::begin(result.epoch.bytes));
    text_out(from.socket_path, result.socket_path, result.socket_path_size);
    text_out(from.domain, result.domain, result.domain_size);
    result_out(result, info, "broker");
  });
}

gpushm_errc gpushm_client_cache_stats(const gpushm_client* client, gpushm_cache_stats* stats) {
  return c_call([&] {
    const gpushm::cache_stats from = usable(client, "cache_stats").leases().stats();
    gpushm_cache_stats result{};
    result.hits = from.hits;
    result.misses = from.misses;
    result.evictions = from.evictions;
    result.kept_entries = from.kept_entries;
    result.kept_bytes = from.kept_bytes;
    result.used_entries = from.used_entries;
    result.used_bytes = from.used_bytes;
    result_out(result, stats, "cache_stats");
  });
}

gpushm_errc gpushm_client_trim(gpushm_client* client) {
  return c_call([&] { usable(client, "trim").leases().trim(); });
}

// ---- segments ----

gpushm_errc gpushm_client_create(gpushm_client* client,
                                 gpushm_string name,
                                 const gpushm_create_options* options,
                                 gpushm_segment** segment) {
  return segment_out(client, name, "create", segment, [&](auto& impl, std::string_view called) {
    return impl.create(called, options_from(options));
  });
}

gpushm_errc gpushm_client_share(gpushm_client* client,
                                gpushm_string name,
                                void* pointer,
                                uint64_t size_bytes,
                                const gpushm_share_options* options,
                                gpushm_segment** segment) {
  return segment_out(client, name, "share", segment, [&](auto& impl, std::string_view called) {
    return impl.share(called, pointer, size_bytes, options_from(options));
  });
}

gpushm_errc gpushm_client_open(gpushm_client* client,
                               gpushm_string name,
                               const gpushm_open_options* options,
                               int64_t timeout_ms,
                               gpushm_segment** segment) {
  return segment_out(client, name, "open", segment, [&](auto& impl, std::string_view called) {
    return impl.open(called, open_options_from(options, timeout_ms));
  });
}

gpushm_errc gpushm_client_try_open(gpushm_client* client,
                                   gpushm_string name,
                                   const gpushm_open_options* options,
                                   int64_t timeout_ms,
                                   gpushm_segment** segment) {
  return segment_out(client, name, "open", segment, [&](auto& impl, std::string_view called) {
    return impl.try_open(called, open_options_from(options, timeout_ms));
  });
}

gpushm_errc gpushm_client_open_many(gpushm_client* client,
                                    const gpushm_string* names,
                                    size_t count,
                                    const gpushm_open_options* options,
                                    int64_t timeout_ms,
                                    gpushm_open_result* results) {
  return c_call([&] {
    auto& impl = usable(client, "open");
    const auto wanted = open_options_from(options, timeout_ms);
    if (count == 0) {
      return;
    }
    std::vector<std::string> called;
    called.reserve(count);
    for (const gpushm_string& name : std::span(&out(names, "open"), count)) {
      called.emplace_back(text_in(name, "open"));
    }
    gpushm_open_result* next = &out(results, "open");
    for (auto& outcome : impl.open_many(called, wanted)) {
      next->failure = outcome.failure ? gpushm_error_dup(outcome.failure->handle()) : nullptr;
      next->segment = outcome.opened.release();
      ++next;
    }
  });
}

gpushm_errc gpushm_client_prefetch(gpushm_client* client, gpushm_string prefix, size_t* count) {
  return c_call([&] {
    const auto begin = text_in(prefix, "prefetch");
    auto& impl = usable(client, "prefetch", begin);
    const std::size_t more = impl.prefetch(begin, impl.request_deadline());
    if (count != nullptr) {
      *count = more;
    }
  });
}

gpushm_errc gpushm_client_remove(gpushm_client* client, gpushm_string name) {
  return c_call([&] {
    const auto called = text_in(name, "remove");
    usable(client, "remove", called).remove(called, 0);
  });
}

gpushm_errc gpushm_client_remove_generation(gpushm_client* client,
                                            gpushm_string name,
                                            uint64_t generation) {
  return c_call([&] {
    const auto called = text_in(name, "remove");
    gpushm::client_detail::check_generation(generation, "remove", called);
    usable(client, "remove", called).remove(called, generation);
  });
}

gpushm_errc gpushm_client_unfence(gpushm_client* client, gpushm_string name) {
  return c_call([&] {
    const auto called = text_in(name, "unfence");
    usable(client, "unfence", called).unfence(called);
  });
}

gpushm_errc gpushm_client_stat(gpushm_client* client,
                               gpushm_string name,
                               gpushm_segment_info* info) {
  return c_call([&] {
    const auto called = text_in(name, "stat");
    info_out(usable(client, "stat", called).stat(called, 0), info, "stat");
  });
}

gpushm_errc gpushm_client_stat_generation(gpushm_client* client,
                                          gpushm_string name,
                                          uint64_t generation,
                                          gpushm_segment_info* info) {
  return c_call([&] {
    const auto called = text_in(name, "stat");
    gpushm::client_detail::check_generation(generation, "stat", called);
    info_out(usable(client, "stat", called).stat(called, generation), info, "stat");
  });
}

// ---- lists ----

gpushm_errc gpushm_client_list(gpushm_client* client,
                               gpushm_string prefix,
                               gpushm_segment_list** list) {
  return c_call([&] {
    const auto begin = text_in(prefix, "list");
    auto& impl = usable(client, "list", begin);
    gpushm_segment_list*& result = out(list, "list");
    result = std::make_unique<gpushm_segment_list>(gpushm_segment_list{impl.list(begin)}).release();
  });
}

size_t gpushm_segment_list_size(const gpushm_segment_list* list) {
  return list == nullptr ? 0 : list->segments.size();
}

gpushm_errc gpushm_segment_list_get(const gpushm_segment_list* list,
                                    size_t index,
                                    gpushm_segment_info* info) {
  return c_call([&] {
    if (index >= gpushm_segment_list_size(list)) {
      gpushm::base::throw_invalid("list",
                                  "there is no segment " + std::to_string(index),
                                  "stay below gpushm_segment_list_size");
    }
    info_out(list->segments[index], info, "list");
  });
}

void gpushm_segment_list_free(gpushm_segment_list* list) {
  const std::unique_ptr<gpushm_segment_list> ended(list);
}

// ---- subscriptions ----

gpushm_errc gpushm_client_subscribe(gpushm_client* client,
                                    gpushm_string prefix,
                                    gpushm_segment_list** present,
                                    gpushm_subscription** subscription) {
  return c_call([&] {
    const auto begin = text_in(prefix, "subscribe");
    static_cast<void>(usable(client, "subscribe", begin));
    gpushm_subscription*& result = out(subscription, "subscribe");
    auto list = present == nullptr ? nullptr : std::make_unique<gpushm_segment_list>();
    // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): a handle
    auto* const subscribed =
        new gpushm_subscription{{client->timelines->client().shared_from_this(),
                                 std::string(begin),
                                 list ? &list->segments : nullptr}};
    result = subscribed;
    if (list) {
      *present = list.release();
    }
  });
}

void gpushm_subscription_close(gpushm_subscription* subscription) {
  const gpushm::base::held_log_lines lines;
  const std::unique_ptr<gpushm_subscription> ended(subscription);
}

namespace gpushm::client_detail {

namespace {

subscription_impl& subscribed(gpushm_subscription* subscription) {
  if (subscription == nullptr) {
    throw error(errc::invalid_argument,
                "subscription",
                {},
                "this subscription object is empty",
                "subscribe first; a moved-from object is empty");
  }
  return subscription->impl;
}

gpushm_event event_from(const event& event) {
  gpushm_event result{};
  result.struct_size = sizeof result;
  result.generation = event.generation;
  result.kind = static_cast<gpushm_event_kind>(event.kind);
  result.leases = event.leases;
  result.peer_pid = event.peer_pid;
  result.loss = static_cast<gpushm_loss_cause>(event.loss);
  result.xid = event.xid;
  text_out(event.name, result.name, result.name_size);
  return result;
}

}  // namespace

}  // namespace gpushm::client_detail

gpushm_errc gpushm_subscription_next(gpushm_subscription* subscription,
                                     int64_t timeout_ms,
                                     gpushm_stop* stop,
                                     gpushm_event* event,
                                     bool* arrived) {
  return c_call([&] {
    auto& impl = gpushm::client_detail::subscribed(subscription);
    bool& got = out(arrived, "subscription");
    gpushm::base::check_struct_size(out(event, "subscription").struct_size, "subscription");
    const auto next =
        impl.next(timeout_in(timeout_ms, "subscription"), gpushm::client_detail::token_of(stop));
    if (next) {
      result_out(gpushm::client_detail::event_from(*next), event, "subscription");
    }
    got = next.has_value();
  });
}

gpushm_errc gpushm_subscription_descriptor(gpushm_subscription* subscription, int* descriptor) {
  return c_call([&] {
    out(descriptor, "subscription") = gpushm::client_detail::subscribed(subscription).descriptor();
  });
}

gpushm_errc gpushm_subscription_dispatch(gpushm_subscription* subscription,
                                         gpushm_event_handler handler,
                                         void* user,
                                         size_t* count) {
  size_t dispatched = 0;
  const gpushm_errc code = c_call([&] {
    auto& impl = gpushm::client_detail::subscribed(subscription);
    if (handler == nullptr) {
      gpushm::base::throw_invalid("subscription", "there is no handler", "pass a function");
    }
    // Handles at most a full queue, so that it ends even if events keep arriving.
    while (dispatched < gpushm::client_detail::max_unread_events) {
      const auto next = impl.next(std::chrono::milliseconds(0), {});
      if (!next) {
        return;
      }
      const gpushm_event event = gpushm::client_detail::event_from(*next);
      ++dispatched;
      if (!handler(user, &event)) {
        return;
      }
    }
  });
  if (count != nullptr) {
    *count = dispatched;
  }
  return code;
}
