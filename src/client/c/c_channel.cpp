// SPDX-License-Identifier: Apache-2.0
// The functions of channel.h.
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/report/c_interface.hpp"
#include "client/c/c_handles.hpp"
#include "client/channel/channel_consumer.hpp"
#include "client/channel/channel_names.hpp"
#include "client/channel/channel_producer.hpp"
#include "client/channel/channel_status.hpp"
#include "client/timeline/timeline_poller.hpp"
#include "gpushm/channel.h"

using gpushm::base::bytes_in;
using gpushm::base::c_call;
using gpushm::base::enum_in;
using gpushm::base::options_in;
using gpushm::base::out;
using gpushm::base::result_out;
using gpushm::base::text_in;
using gpushm::base::throw_invalid;
using gpushm::base::timeout_in;
using gpushm::client_detail::acquired_slot;
using gpushm::client_detail::channel_consumer;
using gpushm::client_detail::channel_producer;
using gpushm::client_detail::channel_status;
using gpushm::client_detail::filled_poller;
using gpushm::client_detail::handle_table;
using gpushm::client_detail::read_channel_status;
using gpushm::client_detail::taken_item;
using gpushm::client_detail::token_of;
using gpushm::client_detail::usable_timelines;
using gpushm::client_detail::watched_timeline;
using gpushm::cuda::CUstream;
using std::chrono::milliseconds;
namespace channel = gpushm::channel;

static_assert(GPUSHM_MAX_CHANNEL_SLOTS == channel::max_slots);
static_assert(GPUSHM_MAX_CHANNEL_CONSUMERS == channel::max_consumers);
static_assert(GPUSHM_MAX_ITEM_METADATA_BYTES == channel::max_metadata_bytes);
static_assert(GPUSHM_MAX_HELD_ITEMS == channel::max_held);
static_assert(GPUSHM_CONSUMER_LATEST == static_cast<int>(channel::consumer_mode::latest));
static_assert(GPUSHM_CONSUMER_SHARE == static_cast<int>(channel::consumer_mode::share));

namespace {

/// How long a consumer waits for a channel by default.
constexpr milliseconds default_join{10'000};

/// What a handle stands for: as long as the call, also if another thread closes it meanwhile.
template <typename Handle>
auto filled(const Handle* handle, std::string_view operation) {
  if (handle == nullptr) {
    throw_invalid(operation,
                  "this object is empty",
                  "create a producer or open a consumer first; a moved-from object is empty");
  }
  return handle->impl;
}

std::shared_ptr<acquired_slot> slot_in(const gpushm_slot* slot, std::string_view operation) {
  return handle_table<acquired_slot>::of_process().find(slot, operation);
}
std::shared_ptr<taken_item> item_in(const gpushm_item* item, std::string_view operation) {
  return handle_table<taken_item>::of_process().find(item, operation);
}

/// Calls `work`; errors name the channel.
template <typename Work>
decltype(auto) named(std::string_view channel, Work&& work) {
  try {
    return work();
  } catch (const gpushm::error& why) {
    throw gpushm::client_detail::channel_names::in_terms_of(channel, why);
  }
}

std::optional<CUstream> on_cpu() {
  return std::nullopt;
}
std::optional<CUstream> on_stream(void* stream) {
  return static_cast<CUstream>(stream);
}

gpushm_errc acquire(gpushm_producer* producer,
                    channel_producer::optional_stream stream,
                    int64_t timeout_ms,
                    const gpushm_stop* stop,
                    gpushm_slot** slot,
                    bool* acquired) {
  return c_call([&] {
    const auto from = filled(producer, "acquire");
    gpushm_slot*& result = out(slot, "acquire");
    bool& is_acquired = out(acquired, "acquire");
    const auto timeout = timeout_in(timeout_ms, "acquire");
    const auto owned =
        named(from->name(), [&] { return from->acquire(stream, timeout, token_of(stop)); });
    is_acquired = owned != nullptr;
    result = owned ? static_cast<gpushm_slot*>(owned->handle) : nullptr;
  });
}

/// Adds the watch of a call that has not waited; `is_done`: it has a result.
gpushm_progress progress_of(bool is_done,
                            std::optional<watched_timeline>& missing,
                            gpushm_poller* poller,
                            std::uint64_t key,
                            const gpushm_stop* stop) {
  if (is_done) {
    return GPUSHM_PROGRESS_DONE;
  }
  if (!missing) {
    return GPUSHM_PROGRESS_BLOCKS;
  }
  poller->impl->watch(key, std::move(*missing), token_of(stop));
  return GPUSHM_PROGRESS_WATCHED;
}

gpushm_errc watch_slot(gpushm_producer* producer,
                       channel_producer::optional_stream stream,
                       gpushm_poller* poller,
                       uint64_t key,
                       const gpushm_stop* stop,
                       gpushm_slot** slot,
                       gpushm_progress* progress) {
  return c_call([&] {
    const auto from = filled(producer, "acquire");
    gpushm_slot*& result = out(slot, "acquire");
    gpushm_progress& watched = out(progress, "acquire");
    static_cast<void>(filled_poller(poller));
    std::optional<watched_timeline> missing;
    const auto owned = named(from->name(), [&] { return from->try_acquire(stream, missing); });
    result = owned ? static_cast<gpushm_slot*>(owned->handle) : nullptr;
    watched = progress_of(owned != nullptr, missing, poller, key, stop);
  });
}

gpushm_errc publish(
    gpushm_slot* slot,
    const std::function<channel_producer::optional_stream(const acquired_slot&)>& stream_of,
    const void* metadata,
    size_t metadata_size,
    uint64_t* number) {
  return c_call([&] {
    const auto acquired = slot_in(slot, "publish");
    const auto bytes = bytes_in(metadata, metadata_size, "publish");
    const std::uint64_t result = named(acquired->producer->name(), [&] {
      return acquired->producer->publish(*acquired, stream_of(*acquired), bytes);
    });
    if (number != nullptr) {
      *number = result;
    }
  });
}

gpushm_errc next_item(gpushm_consumer* consumer,
                      channel_consumer::optional_stream stream,
                      int64_t timeout_ms,
                      const gpushm_stop* stop,
                      gpushm_item** item,
                      bool* has_item) {
  return c_call([&] {
    const auto from = filled(consumer, "next");
    gpushm_item*& result = out(item, "next");
    bool& is_taken = out(has_item, "next");
    const auto timeout = timeout_in(timeout_ms, "next");
    const auto taken =
        named(from->name(), [&] { return from->next(stream, timeout, token_of(stop)); });
    is_taken = taken != nullptr;
    result = taken ? static_cast<gpushm_item*>(taken->handle) : nullptr;
  });
}

gpushm_errc release(
    gpushm_item* item,
    const std::function<channel_consumer::optional_stream(const taken_item&)>& stream_of) {
  return c_call([&] {
    const auto taken = item_in(item, "release");
    named(taken->consumer->name(), [&] { taken->consumer->release(*taken, stream_of(*taken)); });
  });
}

}  // namespace

gpushm_errc gpushm_producer_create(gpushm_client* client,
                                   gpushm_string name,
                                   const gpushm_channel_options* options,
                                   gpushm_producer** producer) {
  return c_call([&] {
    const auto called = text_in(name, "create");
    auto& client_timelines = usable_timelines(client, "create", called);
    gpushm_producer*& result = out(producer, "create");
    const auto from = options_in(options, "create");
    channel_producer::options wanted;
    wanted.slot_bytes = from.slot_bytes;
    wanted.slots = from.slots;
    wanted.huge_pages = from.huge_pages;
    if (const auto device = text_in(from.device, "create"); !device.empty()) {
      wanted.device = device;
    }
    wanted.stop = token_of(from.stop);
    result = named(called, [&] {
      return new gpushm_producer{
          std::make_shared<channel_producer>(client_timelines.shared_from_this(), called, wanted)};
    });
  });
}

void gpushm_producer_close(gpushm_producer* producer) {
  const gpushm::base::held_log_lines lines;
  const std::unique_ptr<gpushm_producer> ended(producer);
  if (ended) {
    ended->impl->close();  // also if a call of another thread still uses it
  }
}

gpushm_errc gpushm_producer_acquire(gpushm_producer* producer,
                                    int64_t timeout_ms,
                                    const gpushm_stop* stop,
                                    gpushm_slot** slot,
                                    bool* acquired) {
  return acquire(producer, on_cpu(), timeout_ms, stop, slot, acquired);
}

gpushm_errc gpushm_producer_acquire_on(gpushm_producer* producer,
                                       void* stream,
                                       int64_t timeout_ms,
                                       const gpushm_stop* stop,
                                       gpushm_slot** slot,
                                       bool* acquired) {
  return acquire(producer, on_stream(stream), timeout_ms, stop, slot, acquired);
}

gpushm_errc gpushm_producer_watch(gpushm_producer* producer,
                                  gpushm_poller* poller,
                                  uint64_t key,
                                  const gpushm_stop* stop,
                                  gpushm_slot** slot,
                                  gpushm_progress* progress) {
  return watch_slot(producer, on_cpu(), poller, key, stop, slot, progress);
}

gpushm_errc gpushm_producer_watch_on(gpushm_producer* producer,
                                     void* stream,
                                     gpushm_poller* poller,
                                     uint64_t key,
                                     const gpushm_stop* stop,
                                     gpushm_slot** slot,
                                     gpushm_progress* progress) {
  return watch_slot(producer, on_stream(stream), poller, key, stop, slot, progress);
}

gpushm_errc gpushm_slot_get(const gpushm_slot* slot, gpushm_slot_info* info) {
  return c_call([&] {
    const auto acquired = slot_in(slot, "slot");
    result_out(acquired->producer->info_of(*acquired), info, "slot");
  });
}

gpushm_errc gpushm_slot_memory(const gpushm_slot* slot, gpushm_segment** memory) {
  return c_call([&] {
    const auto acquired = slot_in(slot, "slot");
    gpushm_segment*& result = out(memory, "slot");
    result = acquired->producer->memory_of(*acquired);
  });
}

gpushm_errc gpushm_slot_wait_on(const gpushm_slot* slot, void* stream) {
  return c_call([&] {
    const auto acquired = slot_in(slot, "wait");
    acquired->producer->wait_on(*acquired, static_cast<CUstream>(stream));
  });
}

gpushm_errc gpushm_slot_publish(gpushm_slot* slot,
                                const void* metadata,
                                size_t metadata_size,
                                uint64_t* number) {
  return publish(
      slot,
      [](const acquired_slot& acquired) { return acquired.on; },
      metadata,
      metadata_size,
      number);
}

gpushm_errc gpushm_slot_publish_on(
    gpushm_slot* slot, void* stream, const void* metadata, size_t metadata_size, uint64_t* number) {
  return publish(
      slot, [=](const auto&) { return on_stream(stream); }, metadata, metadata_size, number);
}

gpushm_errc gpushm_slot_publish_now(gpushm_slot* slot,
                                    const void* metadata,
                                    size_t metadata_size,
                                    uint64_t* number) {
  return publish(
      slot, [](const auto&) { return on_cpu(); }, metadata, metadata_size, number);
}

gpushm_errc gpushm_slot_abandon(gpushm_slot* slot) {
  return c_call([&] {
    const auto acquired = slot_in(slot, "abandon");
    acquired->producer->abandon(*acquired);
  });
}

gpushm_errc gpushm_producer_stats_get(const gpushm_producer* producer,
                                      gpushm_producer_stats* stats) {
  return c_call([&] { result_out(filled(producer, "stats")->stats(), stats, "stats"); });
}

gpushm_errc gpushm_consumer_open(gpushm_client* client,
                                 gpushm_string name,
                                 const gpushm_consumer_options* options,
                                 int64_t timeout_ms,
                                 gpushm_consumer** consumer) {
  return c_call([&] {
    const auto called = text_in(name, "open");
    auto& client_timelines = usable_timelines(client, "open", called);
    gpushm_consumer*& result = out(consumer, "open");
    const auto from = options_in(options, "open");
    channel_consumer::options wanted;
    wanted.mode = enum_in(from.mode, channel::consumer_mode::share, "open");
    if (wanted.mode != channel::consumer_mode::block) {
      const std::uint32_t usual = wanted.mode == channel::consumer_mode::latest ? 1 : 2;
      wanted.held = from.held == 0 ? usual : from.held;
    } else if (from.held != 0) {
      throw_invalid("open",
                    "consumers that get each item have no number of held items",
                    "leave `held` 0, or use another mode");
    }
    wanted.device = text_in(from.device, "open");
    wanted.timeout = timeout_in(timeout_ms, "open", default_join);
    wanted.stop = token_of(from.stop);
    wanted.resume = timeout_in(from.resume_ms, "open", milliseconds(0));
    result = named(called, [&] {
      return new gpushm_consumer{
          std::make_shared<channel_consumer>(client_timelines.shared_from_this(), called, wanted)};
    });
  });
}

void gpushm_consumer_close(gpushm_consumer* consumer) {
  const gpushm::base::held_log_lines lines;
  const std::unique_ptr<gpushm_consumer> ended(consumer);
  if (ended) {
    ended->impl->close();  // also if a call of another thread still uses it
  }
}

gpushm_errc gpushm_consumer_next(gpushm_consumer* consumer,
                                 int64_t timeout_ms,
                                 const gpushm_stop* stop,
                                 gpushm_item** item,
                                 bool* has_item) {
  return next_item(consumer, on_cpu(), timeout_ms, stop, item, has_item);
}

gpushm_errc gpushm_consumer_watch(gpushm_consumer* consumer,
                                  gpushm_poller* poller,
                                  uint64_t key,
                                  const gpushm_stop* stop,
                                  gpushm_item** item,
                                  gpushm_progress* progress) {
  return c_call([&] {
    const auto from = filled(consumer, "next");
    gpushm_item*& result = out(item, "next");
    gpushm_progress& watched = out(progress, "next");
    static_cast<void>(filled_poller(poller));
    std::optional<watched_timeline> missing;
    const auto taken = named(from->name(), [&] { return from->try_next(missing); });
    result = taken ? static_cast<gpushm_item*>(taken->handle) : nullptr;
    watched = progress_of(taken != nullptr, missing, poller, key, stop);
  });
}

gpushm_errc gpushm_consumer_next_on(gpushm_consumer* consumer,
                                    void* stream,
                                    int64_t timeout_ms,
                                    const gpushm_stop* stop,
                                    gpushm_item** item,
                                    bool* has_item) {
  return next_item(consumer, on_stream(stream), timeout_ms, stop, item, has_item);
}

gpushm_errc gpushm_item_get(const gpushm_item* item, gpushm_item_info* info) {
  return c_call([&] {
    const auto taken = item_in(item, "item");
    result_out(taken->consumer->info_of(*taken), info, "item");
  });
}

gpushm_errc gpushm_item_memory(const gpushm_item* item, gpushm_segment** memory) {
  return c_call([&] {
    const auto taken = item_in(item, "item");
    gpushm_segment*& result = out(memory, "item");
    result = taken->consumer->memory_of(*taken);
  });
}

gpushm_errc gpushm_item_wait_on(const gpushm_item* item, void* stream) {
  return c_call([&] {
    const auto taken = item_in(item, "wait");
    taken->consumer->wait_on(*taken, static_cast<CUstream>(stream));
  });
}

gpushm_errc gpushm_item_release(gpushm_item* item) {
  return release(item, [](const taken_item& taken) { return taken.on; });
}

gpushm_errc gpushm_item_release_on(gpushm_item* item, void* stream) {
  return release(item, [=](const auto&) { return on_stream(stream); });
}

gpushm_errc gpushm_item_release_now(gpushm_item* item) {
  return release(item, [](const auto&) { return on_cpu(); });
}

gpushm_errc gpushm_consumer_check(gpushm_consumer* consumer) {
  return c_call([&] { filled(consumer, "check")->check(); });
}

bool gpushm_consumer_has_ended(const gpushm_consumer* consumer) {
  return consumer != nullptr && consumer->impl->has_ended();
}

// ---- for tools ----

struct gpushm_channel_status {
  channel_status read;
};

namespace {

const channel_status& filled(const gpushm_channel_status* status) {
  if (status == nullptr) {
    throw_invalid("stat", "the status is NULL", "read it first: gpushm_channel_status_read");
  }
  return status->read;
}

}  // namespace

gpushm_errc gpushm_channel_status_read(gpushm_client* client,
                                       gpushm_string name,
                                       gpushm_channel_status** status) {
  return c_call([&] {
    const auto called = text_in(name, "stat");
    auto& client_timelines = usable_timelines(client, "stat", called);
    gpushm_channel_status*& result = out(status, "stat");
    result = std::make_unique<gpushm_channel_status>(
                 gpushm_channel_status{read_channel_status(client_timelines, called)})
                 .release();
  });
}

gpushm_errc gpushm_channel_status_get(const gpushm_channel_status* status,
                                      gpushm_channel_info* info) {
  return c_call([&] { result_out(filled(status).info, info, "stat"); });
}

gpushm_errc gpushm_channel_status_consumer(const gpushm_channel_status* status,
                                           size_t index,
                                           gpushm_channel_consumer_info* info) {
  return c_call([&] {
    const auto& consumers = filled(status).consumers;
    if (index >= consumers.size()) {
      throw_invalid("stat",
                    "the channel has " + std::to_string(consumers.size()) + " consumers",
                    "pass an index below that number");
    }
    result_out(consumers[index], info, "stat");
  });
}

void gpushm_channel_status_free(gpushm_channel_status* status) {
  const gpushm::base::held_log_lines lines;
  const std::unique_ptr<gpushm_channel_status> ended(status);
}
