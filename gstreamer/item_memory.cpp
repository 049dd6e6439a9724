// SPDX-License-Identifier: Apache-2.0
#include "gstreamer/item_memory.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "gstreamer/element_support.hpp"

namespace gpushm::gstreamer {

namespace {

/// Smaller items are copied: that takes about as long as wrapping them, and elements collect small
/// buffers (filesink: 64 KiB of them), so that too many slots would be in use.
constexpr std::uint64_t min_bytes_in_place = 65'537;

/// What a memory holds.
struct held_item {
  std::shared_ptr<item_source> source;
  channel_item item;
  segment slots;  ///< a new producer may have replaced them
};

void free_held_item(gpointer data) {
  const std::unique_ptr<held_item> owned(static_cast<held_item*>(data));
  owned->source->release(owned->item);
}

}  // namespace

item_source::item_source(client client, options options, const std::stop_token& stop)
    : options_(std::move(options)), client_(std::move(client)) {
  consumer_options joining;
  joining.mode = options_.mode;
  joining.held = options_.mode == consumer_mode::latest ? options_.held : 0;
  joining.timeout = options_.timeout;
  joining.stop = stop;
  joining.resume = options_.resume;
  try {
    consumer_ = channel_consumer::open(client_, options_.channel, joining);
  } catch (const error& why) {
    if (why.code() != errc::no_such_segment) {
      throw;
    }
    throw error(
        errc::no_such_segment,
        "receive",
        options_.channel,
        "there was no such channel within " + std::to_string(options_.timeout.count()) + " ms",
        "start what publishes into it (gpushmsink), correct its name, or increase timeout");
  }
  if (client_.stat(options_.channel).device.kind != device_kind::host) {
    throw error(errc::invalid_argument,
                "receive",
                options_.channel,
                "the channel is in the memory of a GPU, and this element reads host memory only",
                "create the channel in host memory");
  }
}

std::shared_ptr<item_source> item_source::open(client client,
                                               const options& options,
                                               const std::stop_token& stop) {
  return std::shared_ptr<item_source>(new item_source(std::move(client), options, stop));
}

std::optional<channel_item> item_source::next(std::chrono::milliseconds timeout,
                                              const std::stop_token& stop) {
  return consumer_.next(timeout, stop);
}

void item_source::release(channel_item& item) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    held_.erase(item.number());
    item.release();
  } catch (const std::exception& why) {  // of a consumer that its producer has dropped
    GST_CAT_WARNING(debug_category(), "%s", why.what());
  }
}

bool item_source::try_hold(const channel_item& item, std::uint64_t size) {
  const std::lock_guard lock(mutex_);
  slots_seen_ = std::max(slots_seen_, item.index() + 1);
  bool may_hold = !options_.copy && size >= min_bytes_in_place;
  if (options_.mode == consumer_mode::latest) {
    may_hold = may_hold && held_.size() + 1 < options_.held;
  } else {
    // The producer sees releases in order: all from the oldest item in use are occupied.
    const std::uint64_t oldest = held_.empty() ? item.number() : *held_.begin();
    may_hold = may_hold && item.number() - oldest + 1 < slots_seen_;
  }
  if (may_hold) {
    held_.insert(item.number());
  }
  return may_hold;
}

GstMemory* item_source::memory_of(channel_item& item, std::uint64_t size) {
  try {
    if (size == 0) {
      release(item);
      return nullptr;
    }
    if (try_hold(item, size)) {
      void* const first = const_cast<void*>(item.data());
      segment slots = item.memory();
      auto held = std::make_unique<held_item>(
          held_item{shared_from_this(), std::move(item), std::move(slots)});
      // Read-only memory: the pointer is not const because GStreamer has one type for both.
      return gst_memory_new_wrapped(
          GST_MEMORY_FLAG_READONLY, first, size, 0, size, held.release(), &free_held_item);
    }
    GstMemory* const copied = gst_allocator_alloc(nullptr, size, nullptr);
    GstMapInfo to{};
    if (copied == nullptr || gst_memory_map(copied, &to, GST_MAP_WRITE) == FALSE) {
      throw error(errc::out_of_memory, "receive", options_.channel, "a buffer was not allocated");
    }
    std::memcpy(to.data, item.data(), size);
    gst_memory_unmap(copied, &to);
    release(item);
    return copied;
  } catch (...) {
    release(item);
    throw;
  }
}

}  // namespace gpushm::gstreamer
