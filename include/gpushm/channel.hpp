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

/// Calls with a stream enqueue what they do; those without one use the CPU. Both can be mixed.
/// `stream` is a CUstream or a cudaStream_t.

struct channel_options {
  std::uint64_t slot_bytes = 0;  ///< of each slot; must not be 0
  /// 1 to 1,024; two more than `latest` consumers can hold together. With 1 there can be no
  /// `latest` consumer.
  std::uint32_t slots = 4;
  std::string device = "auto";  ///< as in `create_options`
  bool huge_pages = false;      ///< as in `create_options`
  /// Cancels the waits for a dead producer with `errc::cancelled`.
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

  /// Makes `stream`, which must not be captured, wait until the slot is free. For other streams
  /// than the one that the slot was acquired for. Throws too_many_waits after a second.
  void wait_on(void* stream) const { glue::check(gpushm_slot_wait_on(handle_.get(), stream)); }
  /// Publishes the slot, with up to 256 bytes of metadata: after the work that is already enqueued
  /// on the stream that it was acquired for, or now if it was acquired for the CPU, and after all
  /// previously published items. Returns the number of the item, from 1. Does not wait. Throws
  /// `error`: invalid_argument, message_too_large, driver_error: the slot is then still acquired,
  /// and consumers do not see the item.
  std::uint64_t publish(std::span<const std::byte> metadata = {}) {
    return publish_by(&gpushm_slot_publish, metadata);
  }
  /// As above, when `stream`, which must not be captured, has done what it was given before.
  std::uint64_t publish_on(void* stream, std::span<const std::byte> metadata = {}) {
    return publish_by(
        [stream](auto* slot, auto... rest) {
          return gpushm_slot_publish_on(slot, stream, rest...);
        },
        metadata);
  }
  /// As above, now. Precondition: no stream still writes into the slot.
  std::uint64_t publish_now(std::span<const std::byte> metadata = {}) {
    return publish_by(&gpushm_slot_publish_now, metadata);
  }
  /// Frees the slot without publishing it. Precondition: no stream still writes into it.
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

struct producer_stats {
  std::uint64_t announced =
      0;  ///< the last item that was published, or enqueued on a stream for that
  std::uint64_t published = 0;  ///< the last item that is complete
  std::uint32_t consumers = 0;
  std::uint32_t dropped = 0;     ///< consumers whose timelines were not valid
  bool is_continuation = false;  ///< it has continued the channel of a previous producer
};

/// The process that fills a channel. Move-only; a moved-from or default-constructed object is
/// empty: every call throws `errc::invalid_argument`. A thread of the library admits consumers.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class channel_producer {
 public:
  channel_producer() noexcept = default;
  /// Creates a channel, or continues one whose producer has died: the slots must have the same size
  /// and number, and the consumers continue with the first item of this producer. If the previous
  /// producer closed the channel, this one gets new slots and starts without consumers. Blocks
  /// until the timelines of a dead producer have ended, at most as long as for a request. Throws
  /// `error`: already_exists (the channel has a producer), size_mismatch, cancelled, and as
  /// `client::create`.
  [[nodiscard]] static channel_producer create(const client& by,
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
    glue::check(gpushm_producer_create(by.handle(), glue::text(name), &wanted, &created));
    result.handle_.reset(created);
    return result;
  }

  /// Blocks until a slot is free. Returns nullopt after `timeout`, or when `stop` was requested.
  /// Several slots may be acquired at once.
  [[nodiscard]] std::optional<channel_slot> acquire(std::chrono::milliseconds timeout,
                                                    const std::stop_token& stop = {}) {
    return acquire_by(&gpushm_producer_acquire, timeout, stop);
  }
  /// As above, for a slot that `stream` fills: the stream waits until the slot is free, and this
  /// call blocks only until each consumer's CPU has taken the previous item in it. Throws
  /// too_many_waits, driver_error.
  [[nodiscard]] std::optional<channel_slot> acquire(void* stream,
                                                    std::chrono::milliseconds timeout,
                                                    const std::stop_token& stop = {}) {
    return acquire_by(
        [stream](auto* producer, auto... rest) {
          return gpushm_producer_acquire_on(producer, stream, rest...);
        },
        timeout,
        stop);
  }
  [[nodiscard]] producer_stats stats() const {
    auto got = glue::sized<gpushm_producer_stats>();
    glue::check(gpushm_producer_stats_get(handle_.get(), &got));
    return {got.announced, got.published, got.consumers, got.dropped, got.is_continuation};
  }
  /// Ends the channel, as the destructor does: consumers get the published items (`latest`
  /// consumers the newest one), and then the end. Abandons acquired slots. Blocks, at most a
  /// second, until streams have published their items. If this producer has continued a channel,
  /// blocks, at most a second, until each consumer has opened it; the items for the others stay as
  /// long as the client.
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
  /// Shares the work: each item goes to one of the consumers of this mode, the one with most room.
  /// When one of them ends, its unreleased items go to another one, if any. The producer waits if
  /// each of them has as many items as it may hold.
  share = GPUSHM_CONSUMER_SHARE,
};

struct consumer_options {
  consumer_mode mode = consumer_mode::block;
  /// How many items it may hold, 1 to 16. 0: 1 for `latest`; 2 for `share`, where items that it was
  /// given count before it takes them.
  std::uint32_t held = 0;
  std::string device = {};  ///< the GPU that reads, as in `open_options`
  /// Limits the waits for the channel's name and for the producer's reply, which never comes within
  /// zero.
  std::chrono::milliseconds timeout{10'000};
  std::stop_token stop = {};
  /// How long `next` waits for the next producer after it has seen the death of this one, within
  /// its own timeout. 0: it reports the death at once. `forever`: limited only by its timeout.
  std::chrono::milliseconds resume{0};
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
  /// How many numbers this consumer did not get since its previous item, or since it joined: items
  /// that newer ones replaced, and items that a dead producer announced and did not complete. 0 for
  /// `share`.
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

  /// Makes `stream`, which must not be captured, wait until the item is complete. For other streams
  /// than the one that the item was taken for. Throws too_many_waits after a second.
  void wait_on(void* stream) const { glue::check(gpushm_item_wait_on(handle_.get(), stream)); }
  /// Releases the item: after the work that is already enqueued on the stream that it was taken
  /// for, or now if it was taken for the CPU. Items may be released in any order, and on several
  /// streams. Does not wait. Throws `error`: invalid_argument, driver_error: the item is then still
  /// held.
  void release() { release_by(&gpushm_item_release); }
  /// As above, when `stream`, which must not be captured, has done what it was given before.
  void release_on(void* stream) {
    release_by([stream](auto* item) { return gpushm_item_release_on(item, stream); });
  }
  /// As above, now. Precondition: no stream still reads the item.
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
  /// Joins a channel: starts at the newest item, or at the next one if there is none. Throws
  /// `error`: no_such_segment, quota_exceeded (too many consumers, or too few slots), timed_out
  /// (the producer does not reply), cancelled, and as `client::open`.
  [[nodiscard]] static channel_consumer open(const client& by,
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
        by.handle(), glue::text(name), &wanted, options.timeout.count(), &opened));
    result.handle_.reset(opened);
    return result;
  }

  /// Blocks until there is a next item, or a newer one for `latest`. Returns nullopt after
  /// `timeout`, when `stop` was requested, and at the end (`has_ended`). Throws `error`: peer_died
  /// (the producer has died, no complete item of it is left for this consumer, and there was no new
  /// producer within `consumer_options::resume`; a later call continues when there is one),
  /// too_many_requests (this consumer holds as many items as it may).
  [[nodiscard]] std::optional<channel_item> next(std::chrono::milliseconds timeout,
                                                 const std::stop_token& stop = {}) {
    return next_by(&gpushm_consumer_next, timeout, stop);
  }
  /// As above, for an item that `stream` reads: the stream waits until the item is complete, and
  /// this call blocks only until it is announced. Synchronize the stream and call `check` to find
  /// out whether all items were complete. Throws too_many_waits, driver_error.
  [[nodiscard]] std::optional<channel_item> next(void* stream,
                                                 std::chrono::milliseconds timeout,
                                                 const std::stop_token& stop = {}) {
    return next_by(
        [stream](auto* consumer, auto... rest) {
          return gpushm_consumer_next_on(consumer, stream, rest...);
        },
        timeout,
        stop);
  }
  /// Throws `errc::peer_died` if the producer died before it completed an item that a stream of
  /// this consumer was given: results of that stream since the last check must not be used. Reports
  /// it once.
  void check() { glue::check(gpushm_consumer_check(handle_.get())); }
  /// The producer has closed the channel, and all items were read.
  [[nodiscard]] bool has_ended() const noexcept { return gpushm_consumer_has_ended(handle_.get()); }
  /// Leaves the channel, as the destructor does. Its items are no longer valid. Blocks, at most a
  /// second, until streams have released their items.
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

/// A consumer of a channel, as a process sees it that has not joined the channel.
struct channel_consumer_status {
  consumer_mode mode = consumer_mode::block;
  std::uint32_t may_hold = 0;  ///< items; 0 for `block`
  std::uint32_t holds = 0;     ///< items that it has taken and not released
  bool is_admitted = false;    ///< the producer has admitted it
  std::uint32_t uid = 0;       ///< as the broker sees it
  std::int32_t pid = 0;        ///< as the broker sees it; 0: not visible to it
  std::uint64_t start = 0;     ///< its first item; 0: not admitted
  /// The newest item that it has taken, or holds if it is `latest`; 0: none. For `share`: how many
  /// it was given.
  std::uint64_t taken = 0;
  std::uint64_t released = 0;  ///< as `taken`; 0 for `latest`
  /// How many items are complete after the last one that it has released, or after the newest one
  /// that it holds. For `share`: how many it was given and has not released.
  std::uint64_t lag = 0;
  gpushm::generation generation = 0;  ///< of its timelines
};

/// A channel, as a process sees it that has not joined it: for tools.
struct channel_status {
  std::uint32_t slots = 0;
  std::uint64_t slot_bytes = 0;
  std::uint64_t first_item = 0;  ///< of this producer
  std::uint64_t announced = 0;   ///< as in `producer_stats`
  std::uint64_t published = 0;
  bool has_producer = false;  ///< false: it has closed the channel, or has died
  bool is_closed = false;     ///< the producer has said that there are no more items
  bool is_writable = false;   ///< as `timeline::is_writable`, for the producer's timelines
  std::uint32_t producer_uid = 0;
  std::int32_t producer_pid = 0;  ///< as the broker sees it; 0: not visible to it
  std::vector<channel_consumer_status> consumers;

  /// Reads the state of a channel, in several round trips to the broker. Changes nothing, and does
  /// not check timelines of other processes. Throws `error`: no_such_segment (no channel of this
  /// name has a producer, or a previous one whose timelines a process still has), and as
  /// `client::list`.
  [[nodiscard]] static channel_status read(const client& by, std::string_view name) {
    gpushm_channel_status* read = nullptr;
    glue::check(gpushm_channel_status_read(by.handle(), glue::text(name), &read));
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
