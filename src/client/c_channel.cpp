// SPDX-License-Identifier: Apache-2.0
// The functions of channel.h.
#include <chrono>
#include <memory>
#include <string>

#include "base/c_interface.hpp"
#include "client/c_handles.hpp"
#include "client/channel_consumer.hpp"
#include "client/channel_names.hpp"
#include "client/channel_producer.hpp"
#include "gpushm/channel.h"

using gpushm::base::bytes_in;
using gpushm::base::c_call;
using gpushm::base::enum_in;
using gpushm::base::options_in;
using gpushm::base::out;
using gpushm::base::result_out;
using gpushm::base::text_in;
using gpushm::base::throw_invalid;
using gpushm::cuda::CUstream;
using gpushm::detail::token_of;
using gpushm::detail::usable;
using std::chrono::milliseconds;
namespace channel = gpushm::channel;

static_assert(GPUSHM_MAX_CHANNEL_SLOTS == channel::max_slots);
static_assert(GPUSHM_MAX_CHANNEL_CONSUMERS == channel::max_consumers);
static_assert(GPUSHM_MAX_ITEM_METADATA_BYTES == channel::max_metadata_bytes);
static_assert(GPUSHM_MAX_HELD_ITEMS == channel::max_held);
static_assert(GPUSHM_CONSUMER_LATEST == static_cast<int>(channel::consumer_mode::latest));
static_assert(GPUSHM_CONSUMER_SHARE == static_cast<int>(channel::consumer_mode::share));

namespace {

/// How long a consumer waits for a channel unless it says so.
constexpr milliseconds default_join{10'000};

template <typename Handle>
Handle& filled(Handle* handle, std::string_view what) {
  if (handle == nullptr) {
    throw_invalid(what,
                  "this object is empty",
                  "create a producer or open a consumer first; a moved-from object is empty");
  }
  return *handle;
}

/// Calls `work`; errors name the channel.
template <typename Work>
decltype(auto) named(std::string_view channel, Work&& work) {
  try {
    return work();
  } catch (const gpushm::error& why) {
    throw gpushm::detail::channel_names::in_terms_of(channel, why);
  }
}

std::optional<CUstream> on_cpu() {
  return std::nullopt;
}
std::optional<CUstream> on_stream(void* stream) {
  return static_cast<CUstream>(stream);
}

gpushm_errc acquire(gpushm_producer* producer,
                    gpushm_producer::where on,
                    int64_t timeout_ms,
                    const gpushm_stop* stop,
                    gpushm_slot* slot,
                    bool* acquired) {
  return c_call([&] {
    auto& from = filled(producer, "acquire");
    gpushm_slot& result = out(slot, "acquire");
    bool& is_acquired = out(acquired, "acquire");
    const auto got = named(
        from.name(), [&] { return from.acquire(on, milliseconds(timeout_ms), token_of(stop)); });
    is_acquired = got.has_value();
    result = got.value_or(gpushm_slot{});
  });
}

gpushm_errc next_item(gpushm_consumer* consumer,
                      gpushm_consumer::where on,
                      int64_t timeout_ms,
                      const gpushm_stop* stop,
                      gpushm_item* item,
                      bool* got) {
  return c_call([&] {
    auto& from = filled(consumer, "next");
    gpushm_item& result = out(item, "next");
    bool& has_got = out(got, "next");
    const auto taken =
        named(from.name(), [&] { return from.next(on, milliseconds(timeout_ms), token_of(stop)); });
    has_got = taken.has_value();
    result = taken.value_or(gpushm_item{});
  });
}

}  // namespace

gpushm_errc gpushm_producer_create(gpushm_client* client,
                                   gpushm_string name,
                                   const gpushm_channel_options* options,
                                   gpushm_producer** producer) {
  return c_call([&] {
    const auto called = text_in(name, "create");
    auto& impl = usable(client, "create", called);
    gpushm_producer*& result = out(producer, "create");
    const auto from = options_in(options, "create");
    gpushm_producer::options wanted;
    wanted.slot_bytes = from.slot_bytes;
    wanted.slots = from.slots;
    wanted.huge_pages = from.huge_pages;
    if (const auto device = text_in(from.device, "create"); !device.empty()) {
      wanted.device = device;
    }
    wanted.stop = token_of(from.stop);
    result = named(called, [&] {
      return std::make_unique<gpushm_producer>(impl.shared_from_this(), called, wanted).release();
    });
  });
}

void gpushm_producer_close(gpushm_producer* producer) {
  const gpushm::base::held_log_lines lines;
  const std::unique_ptr<gpushm_producer> ended(producer);
}

gpushm_errc gpushm_producer_acquire(gpushm_producer* producer,
                                    int64_t timeout_ms,
                                    const gpushm_stop* stop,
                                    gpushm_slot* slot,
                                    bool* acquired) {
  return acquire(producer, on_cpu(), timeout_ms, stop, slot, acquired);
}

gpushm_errc gpushm_producer_acquire_on(gpushm_producer* producer,
                                       void* stream,
                                       int64_t timeout_ms,
                                       const gpushm_stop* stop,
                                       gpushm_slot* slot,
                                       bool* acquired) {
  return acquire(producer, on_stream(stream), timeout_ms, stop, slot, acquired);
}

gpushm_errc gpushm_producer_publish(gpushm_producer* producer,
                                    const void* metadata,
                                    size_t metadata_size) {
  return c_call([&] {
    filled(producer, "publish").publish(on_cpu(), bytes_in(metadata, metadata_size, "publish"));
  });
}

gpushm_errc gpushm_producer_publish_on(gpushm_producer* producer,
                                       void* stream,
                                       const void* metadata,
                                       size_t metadata_size) {
  return c_call([&] {
    filled(producer, "publish")
        .publish(on_stream(stream), bytes_in(metadata, metadata_size, "publish"));
  });
}

gpushm_errc gpushm_producer_abandon(gpushm_producer* producer) {
  return c_call([&] { filled(producer, "abandon").abandon(); });
}

gpushm_errc gpushm_producer_stats_get(const gpushm_producer* producer,
                                      gpushm_producer_stats* stats) {
  return c_call([&] { result_out(filled(producer, "stats").stats(), stats, "stats"); });
}

gpushm_errc gpushm_consumer_open(gpushm_client* client,
                                 gpushm_string name,
                                 const gpushm_consumer_options* options,
                                 gpushm_consumer** consumer) {
  return c_call([&] {
    const auto called = text_in(name, "open");
    auto& impl = usable(client, "open", called);
    gpushm_consumer*& result = out(consumer, "open");
    const auto from = options_in(options, "open");
    gpushm_consumer::options wanted;
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
    wanted.timeout = from.timeout_ms == 0 ? default_join : milliseconds(from.timeout_ms);
    wanted.stop = token_of(from.stop);
    result = named(called, [&] {
      return std::make_unique<gpushm_consumer>(impl.shared_from_this(), called, wanted).release();
    });
  });
}

void gpushm_consumer_close(gpushm_consumer* consumer) {
  const gpushm::base::held_log_lines lines;
  const std::unique_ptr<gpushm_consumer> ended(consumer);
}

gpushm_errc gpushm_consumer_next(gpushm_consumer* consumer,
                                 int64_t timeout_ms,
                                 const gpushm_stop* stop,
                                 gpushm_item* item,
                                 bool* got) {
  return next_item(consumer, on_cpu(), timeout_ms, stop, item, got);
}

gpushm_errc gpushm_consumer_next_on(gpushm_consumer* consumer,
                                    void* stream,
                                    int64_t timeout_ms,
                                    const gpushm_stop* stop,
                                    gpushm_item* item,
                                    bool* got) {
  return next_item(consumer, on_stream(stream), timeout_ms, stop, item, got);
}

gpushm_errc gpushm_consumer_release(gpushm_consumer* consumer, uint64_t number) {
  return c_call([&] { filled(consumer, "release").release(on_cpu(), number); });
}

gpushm_errc gpushm_consumer_release_on(gpushm_consumer* consumer, void* stream, uint64_t number) {
  return c_call([&] { filled(consumer, "release").release(on_stream(stream), number); });
}

gpushm_errc gpushm_consumer_check(gpushm_consumer* consumer) {
  return c_call([&] { filled(consumer, "check").check(); });
}

bool gpushm_consumer_has_ended(const gpushm_consumer* consumer) {
  return consumer != nullptr && consumer->has_ended();
}
