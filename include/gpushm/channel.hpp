// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpushm/channel.h"
#include "gpushm/client.hpp"
#include "gpushm/error.hpp"
#include "gpushm/segment.hpp"
#include "gpushm/timeline.hpp"

namespace gpushm {
inline namespace v1 {

/// A channel is a ring of slots of one size: one process fills them (`channel_producer`), 1 to 64
/// others read them (`channel_consumer`), ordered by timelines, on CPUs and on CUDA streams
/// (docs/channels.md). Neither side synchronizes with a stream.

/// Calls with a stream enqueue their work; calls without one use the CPU. Both can be mixed.
/// `stream` is a CUstream or a cudaStream_t.

/// The members are those of `gpushm_channel_options`.
struct channel_options {
  std::uint64_t slot_bytes = 0;
  std::uint32_t slots = 4;
  std::string device = "auto";
  bool huge_pages = false;
  std::stop_token stop = {};
};

/// A slot that the producer fills. Move-only; the destructor abandons it, unless it was published
/// or abandoned. Empty after that, when it is moved from, and by default: then `operator bool` is
/// false, and calls throw `errc::invalid_argument`, as they do when the producer was closed.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class channel_slot {
 public:
  channel_slot() noexcept = default;
  /// Takes ownership of `handle`.
  explicit channel_slot(gpushm_slot* handle)
      : handle_(handle), info_(glue::sized<gpushm_slot_info>()) {
    glue::check(gpushm_slot_get(handle, &info_));
  }

  explicit operator bool() const noexcept { return handle_ != nullptr; }
  /// A device pointer, or host memory.
  [[nodiscard]] void* data() const noexcept { return info_.data; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return info_.bytes; }
  /// The number of the slot, from 0.
  [[nodiscard]] std::uint32_t index() const noexcept { return info_.index; }
  /// The segment that has the slot.
  [[nodiscard]] segment memory() const {
    gpushm_segment* result = nullptr;
    glue::check(gpushm_slot_memory(handle_.get(), &result));
    return segment(result);
  }

  /// Whether a CPU may write it now: a slot that was acquired for a stream may still be read. Does
  /// not block.
  [[nodiscard]] bool is_free() const {
    auto info = glue::sized<gpushm_slot_info>();
    glue::check(gpushm_slot_get(handle_.get(), &info));
    return info.is_free;
  }

  /// Makes `stream` wait until the slot is free. As `gpushm_slot_wait_on`.
  void wait_on(void* stream) const { glue::check(gpushm_slot_wait_on(handle_.get(), stream)); }
  /// Publishes the slot, and returns the number of the item. As `gpushm_slot_publish`.
  std::uint64_t publish(std::span<const std::byte> metadata = {}) {
    return publish_by(&gpushm_slot_publish, metadata);
  }
  /// Publishes it when `stream` has done its work. As `gpushm_slot_publish_on`.
  std::uint64_t publish_on(void* stream, std::span<const std::byte> metadata = {}) {
    return publish_by(
        [stream](auto* slot, auto... arguments) {
          return gpushm_slot_publish_on(slot, stream, arguments...);
        },
        metadata);
  }
  /// Publishes it now. As `gpushm_slot_publish_now`.
  std::uint64_t publish_now(std::span<const std::byte> metadata = {}) {
    return publish_by(&gpushm_slot_publish_now, metadata);
  }
  /// Frees the slot without publishing it. As `gpushm_slot_abandon`.
  void abandon() {
    glue::check(gpushm_slot_abandon(handle_.get()));
    static_cast<void>(handle_.release());
  }

 private:
  template <typename Publish>
  std::uint64_t publish_by(Publish&& call, std::span<const std::byte> metadata) {
    std::uint64_t number = 0;
    glue::check(call(handle_.get(), metadata.data(), metadata.size(), &number));
    static_cast<void>(handle_.release());
    return number;
  }

  std::unique_ptr<gpushm_slot, glue::deleter<&gpushm_slot_abandon>> handle_;
  gpushm_slot_info info_{};
};

/// The members are those of `gpushm_producer_stats`.
struct producer_stats {
  std::uint64_t announced = 0;
  std::uint64_t published = 0;
  std::uint32_t consumers = 0;
  std::uint32_t dropped = 0;
  bool is_continuation = false;
};

/// The process that fills a channel. Move-only; a moved-from or default-constructed object is
/// empty: every call throws `errc::invalid_argument`. A thread of the library admits consumers.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class channel_producer {
 public:
  channel_producer() noexcept = default;
  /// Creates a channel, or continues one whose producer has died. As `gpushm_producer_create`.
  [[nodiscard]] static channel_producer create(const client& client,
                                               std::string_view name,
                                               const channel_options& options) {
    const glue::stop_bridge bridge(options.stop);
    auto wanted = glue::sized<gpushm_channel_options>();
    wanted.slot_bytes = options.slot_bytes;
    wanted.slots = options.slots;
    wanted.huge_pages = options.huge_pages;
    wanted.device = glue::text(options.device);
    wanted.stop = bridge.handle();
    channel_producer result;
    gpushm_producer* created = nullptr;
    glue::check(gpushm_producer_create(client.handle(), glue::text(name), &wanted, &created));
    result.handle_.reset(created);
    return result;
  }

  /// Blocks until a slot is free. Returns nullopt after `timeout`, or when `stop`
  /// was requested. As `gpushm_producer_acquire`.
  [[nodiscard]] std::optional<channel_slot> acquire(std::chrono::milliseconds timeout,
                                                    const std::stop_token& stop = {}) {
    return acquire_by(&gpushm_producer_acquire, timeout, stop);
  }
  /// The same for a slot that `stream` fills. As `gpushm_producer_acquire_on`.
  [[nodiscard]] std::optional<channel_slot> acquire(void* stream,
                                                    std::chrono::milliseconds timeout,
                                                    const std::stop_token& stop = {}) {
    return acquire_by(
        [stream](auto* producer, auto... arguments) {
          return gpushm_producer_acquire_on(producer, stream, arguments...);
        },
        timeout,
        stop);
  }
  [[nodiscard]] producer_stats stats() const {
    auto got = glue::sized<gpushm_producer_stats>();
    glue::check(gpushm_producer_stats_get(handle_.get(), &got));
    return {got.announced, got.published, got.consumers, got.dropped, got.is_continuation};
  }
  /// Ends the channel, as the destructor does. As `gpushm_producer_close`.
  void reset() noexcept { handle_.reset(); }

 private:
  template <typename Acquire>
  [[nodiscard]] std::optional<channel_slot> acquire_by(Acquire&& call,
                                                       std::chrono::milliseconds timeout,
                                                       const std::stop_token& stop) {
    const glue::stop_bridge bridge(stop);
    gpushm_slot* got = nullptr;
    bool acquired = false;
    glue::check(call(handle_.get(),
                     static_cast<std::int64_t>(timeout.count()),
                     static_cast<const gpushm_stop*>(bridge.handle()),
                     &got,
                     &acquired));
    return acquired ? std::optional<channel_slot>(std::in_place, got) : std::nullopt;
  }
  std::unique_ptr<gpushm_producer, glue::deleter<&gpushm_producer_close>> handle_;
};

/// How a consumer gets items.
enum class consumer_mode : std::uint8_t {
  block = GPUSHM_CONSUMER_BLOCK,    ///< each item; the producer waits for it
  latest = GPUSHM_CONSUMER_LATEST,  ///< the newest item; the producer does not wait
  share = GPUSHM_CONSUMER_SHARE,    ///< each item is for one of the consumers of this mode
};

/// Members without a comment are as in `gpushm_consumer_options`.
struct consumer_options {
  consumer_mode mode = consumer_mode::block;
  std::uint32_t held = 0;
  std::string device = {};
  std::chrono::milliseconds timeout{10'000};  ///< of `channel_consumer::open`
  std::stop_token stop = {};
  std::chrono::milliseconds resume{0};  ///< `resume_ms`; `forever` as GPUSHM_FOREVER
};

/// An item that a consumer reads. Move-only; the destructor releases it, as `release` does, unless
/// it was released. After that, when it is moved from, and by default, `operator bool` is false,
/// and calls throw `errc::invalid_argument`, as they do when the consumer was closed.
///
/// Thread-safety: distinct objects: safe; shared objects: const members safe, others unsafe.
class channel_item {
 public:
  channel_item() noexcept = default;
  /// Takes ownership of `handle`.
  explicit channel_item(gpushm_item* handle)
      : handle_(handle), info_(glue::sized<gpushm_item_info>()) {
    glue::check(gpushm_item_get(handle, &info_));
  }

  explicit operator bool() const noexcept { return handle_ != nullptr; }
  /// A device pointer, or host memory.
  [[nodiscard]] const void* data() const noexcept { return info_.data; }
  /// The size of the slot.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return info_.bytes; }
  /// The number of the item, from 1. Numbers grow, except for items that a dead `share` consumer
  /// had.
  [[nodiscard]] std::uint64_t number() const noexcept { return info_.number; }
  /// How many numbers since the previous item this consumer did not get. As `gpushm_item_info`.
  [[nodiscard]] std::uint64_t skipped() const noexcept { return info_.skipped; }
  /// The number of the slot, from 0.
  [[nodiscard]] std::uint32_t index() const noexcept { return info_.index; }
  /// The metadata. Valid until the item is released or its consumer is closed.
  [[nodiscard]] std::span<const std::byte> metadata() const noexcept {
    return handle_ == nullptr
               ? std::span<const std::byte>()
               : std::span(static_cast<const std::byte*>(info_.metadata), info_.metadata_size);
  }
  /// The segment that has the slot. It stays mapped as long as the returned object, even after the
  /// item is released.
  [[nodiscard]] segment memory() const {
    gpushm_segment* result = nullptr;
    glue::check(gpushm_item_memory(handle_.get(), &result));
    return segment(result);
  }

  /// Whether a CPU may read it now: an item that was taken for a stream may still be filled. Does
  /// not block.
  [[nodiscard]] bool is_complete() const {
    auto info = glue::sized<gpushm_item_info>();
    glue::check(gpushm_item_get(handle_.get(), &info));
    return info.is_complete;
  }

  /// `stream` waits until the item is complete. As `gpushm_item_wait_on`.
  void wait_on(void* stream) const { glue::check(gpushm_item_wait_on(handle_.get(), stream)); }
  /// Releases the item. As `gpushm_item_release`.
  void release() { release_by(&gpushm_item_release); }
  /// Releases it when `stream` has done its work. As `gpushm_item_release_on`.
  void release_on(void* stream) {
    release_by([stream](auto* item) { return gpushm_item_release_on(item, stream); });
  }
  /// Releases it now. As `gpushm_item_release_now`.
  void release_now() { release_by(&gpushm_item_release_now); }

 private:
  template <typename Release>
  void release_by(Release&& call) {
    glue::check(call(handle_.get()));
    static_cast<void>(handle_.release());
  }

  std::unique_ptr<gpushm_item, glue::deleter<&gpushm_item_release>> handle_;
  gpushm_item_info info_{};
};

/// A process that reads a channel. Move-only; a moved-from or default-constructed object is empty:
/// every call throws `errc::invalid_argument`.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class channel_consumer {
 public:
  channel_consumer() noexcept = default;
  /// Joins a channel. As `gpushm_consumer_open`.
  [[nodiscard]] static channel_consumer open(const client& client,
                                             std::string_view name,
                                             const consumer_options& options = {}) {
    const glue::stop_bridge bridge(options.stop);
    auto wanted = glue::sized<gpushm_consumer_options>();
    wanted.mode = static_cast<gpushm_consumer_mode>(options.mode);
    wanted.held = options.held;
    wanted.device = glue::text(options.device);
    wanted.stop = bridge.handle();
    wanted.resume_ms = options.resume.count();
    channel_consumer result;
    gpushm_consumer* opened = nullptr;
    glue::check(gpushm_consumer_open(
        client.handle(), glue::text(name), &wanted, options.timeout.count(), &opened));
    result.handle_.reset(opened);
    return result;
  }

  /// Waits for the next item, or for the newest one. Returns nullopt after `timeout`, when `stop`
  /// was requested, or at the end (`has_ended`). As `gpushm_consumer_next`.
  [[nodiscard]] std::optional<channel_item> next(std::chrono::milliseconds timeout,
                                                 const std::stop_token& stop = {}) {
    return next_by(&gpushm_consumer_next, timeout, stop);
  }
  /// The same for an item that `stream` reads. As `gpushm_consumer_next_on`.
  [[nodiscard]] std::optional<channel_item> next(void* stream,
                                                 std::chrono::milliseconds timeout,
                                                 const std::stop_token& stop = {}) {
    return next_by(
        [stream](auto* consumer, auto... arguments) {
          return gpushm_consumer_next_on(consumer, stream, arguments...);
        },
        timeout,
        stop);
  }
  /// Throws `errc::peer_died` if a stream of this consumer may have read an item that was never
  /// complete. As `gpushm_consumer_check`.
  void check() { glue::check(gpushm_consumer_check(handle_.get())); }
  /// The producer has closed the channel, and all items were read.
  [[nodiscard]] bool has_ended() const noexcept { return gpushm_consumer_has_ended(handle_.get()); }
  /// Leaves, as the destructor does. As `gpushm_consumer_close`.
  void reset() noexcept { handle_.reset(); }

 private:
  template <typename Next>
  [[nodiscard]] std::optional<channel_item> next_by(Next&& call,
                                                    std::chrono::milliseconds timeout,
                                                    const std::stop_token& stop) {
    const glue::stop_bridge bridge(stop);
    gpushm_item* item = nullptr;
    bool got = false;
    glue::check(call(handle_.get(),
                     static_cast<std::int64_t>(timeout.count()),
                     static_cast<const gpushm_stop*>(bridge.handle()),
                     &item,
                     &got));
    return got ? std::optional<channel_item>(std::in_place, item) : std::nullopt;
  }
  std::unique_ptr<gpushm_consumer, glue::deleter<&gpushm_consumer_close>> handle_;
};

/// A consumer of a channel, as a process sees it that has not joined the channel. The members are
/// those of `gpushm_channel_consumer_info`.
struct channel_consumer_status {
  consumer_mode mode = consumer_mode::block;
  std::uint32_t may_hold = 0;
  std::uint32_t holds = 0;
  bool is_admitted = false;
  std::uint32_t uid = 0;
  std::int32_t pid = 0;
  std::uint64_t start = 0;
  std::uint64_t taken = 0;
  std::uint64_t released = 0;
  std::uint64_t lag = 0;
  gpushm::generation generation = 0;
};

/// A channel, as a process sees it that has not joined it: for tools. The members are those of
/// `gpushm_channel_info`, and its consumers.
struct channel_status {
  std::uint32_t slots = 0;
  std::uint64_t slot_bytes = 0;
  std::uint64_t first_item = 0;
  std::uint64_t announced = 0;
  std::uint64_t published = 0;
  bool has_producer = false;
  bool is_closed = false;
  bool is_writable = false;
  std::uint32_t producer_uid = 0;
  std::int32_t producer_pid = 0;
  std::vector<channel_consumer_status> consumers;

  /// Reads the state of a channel. As `gpushm_channel_status_read`.
  [[nodiscard]] static channel_status read(const client& client, std::string_view name) {
    gpushm_channel_status* read = nullptr;
    glue::check(gpushm_channel_status_read(client.handle(), glue::text(name), &read));
    const std::unique_ptr<gpushm_channel_status, glue::deleter<&gpushm_channel_status_free>> owned(
        read);
    auto info = glue::sized<gpushm_channel_info>();
    glue::check(gpushm_channel_status_get(read, &info));
    channel_status result;
    result.slots = info.slots;
    result.slot_bytes = info.slot_bytes;
    result.first_item = info.first_item;
    result.announced = info.announced;
    result.published = info.published;
    result.has_producer = info.has_producer;
    result.is_closed = info.is_closed;
    result.is_writable = info.is_writable;
    result.producer_uid = info.producer_uid;
    result.producer_pid = info.producer_pid;
    for (std::size_t at = 0; at < info.consumers; ++at) {
      auto one = glue::sized<gpushm_channel_consumer_info>();
      glue::check(gpushm_channel_status_consumer(read, at, &one));
      result.consumers.push_back({static_cast<consumer_mode>(one.mode),
                                  one.may_hold,
                                  one.holds,
                                  one.is_admitted,
                                  one.uid,
                                  one.pid,
                                  one.start,
                                  one.taken,
                                  one.released,
                                  one.lag,
                                  one.generation});
    }
    return result;
  }
};

}  // namespace v1
}  // namespace gpushm
