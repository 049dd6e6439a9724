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
#include "gpushm/timeline.hpp"

namespace gpushm {
inline namespace v1 {

/// A channel is a ring of slots of one size: one process fills them (`channel_producer`), 1 to 64
/// others read them (`channel_consumer`), ordered by timelines, on CPUs and on CUDA streams
/// (docs/synchronisation.md, "Channels"). Neither side synchronizes with a stream.

/// Calls with a stream enqueue what they do; those without one use the CPU. Both can be mixed.
/// `stream` is a CUstream or a cudaStream_t.

struct channel_options {
  std::uint64_t slot_bytes = 0;  ///< of each slot; must not be 0
  /// 1 to 1,024; two more than consumers of the newest item can hold together. With 1 there can be
  /// none of them.
  std::uint32_t slots = 4;
  std::string device = "auto";  ///< as in `create_options`
  bool huge_pages = false;      ///< as in `create_options`
  /// Cancels the waits for a dead producer with `errc::cancelled`.
  std::stop_token stop = {};
};

/// A slot that the producer fills. Valid until it is published or abandoned.
struct channel_slot {
  void* data = nullptr;  ///< a device pointer, or host memory
  std::uint64_t bytes = 0;
  std::uint64_t number = 0;  ///< of the item that it will be, from 1
  std::uint32_t index = 0;   ///< of the slot
};

struct producer_stats {
  std::uint64_t announced = 0;  ///< the last item that was published, or given to a stream for it
  std::uint64_t published = 0;  ///< the last item that is complete
  std::uint32_t consumers = 0;
  std::uint32_t dropped = 0;     ///< consumers whose words were not valid
  bool is_continuation = false;  ///< it has continued the channel of another producer
};

/// The process that fills a channel. Move-only; a moved-from or default-constructed object is
/// empty: every call throws `errc::invalid_argument`. A thread of the library admits consumers.
///
/// Thread-safety: distinct objects: safe; shared objects: safe, but one slot is acquired at a time.
class channel_producer {
 public:
  channel_producer() noexcept = default;
  /// Creates a channel, or continues one whose producer has died: its slots must have the same
  /// size and number; its members go on with the first item of this producer. After a producer that
  /// has closed the channel, this one has other slots, and its consumers are not members. Waits, at
  /// most as long as for a request, until the words of a dead producer have ended. Throws `error`:
  /// already_exists (it has a producer), size_mismatch, cancelled, and as `client::create`.
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

  /// Waits for a slot that nobody uses any more, at most `timeout`; nothing after that, or when
  /// `stop` was requested. Publish or abandon it before the next. Throws invalid_argument.
  [[nodiscard]] std::optional<channel_slot> acquire(std::chrono::milliseconds timeout,
                                                    const std::stop_token& stop = {}) {
    return acquire_by(&gpushm_producer_acquire, timeout, stop);
  }
  /// As above, for a slot that `stream` fills: the stream waits until nobody uses it; this call
  /// waits only until each consumer's CPU has seen the item that was in it. Throws too_many_waits,
  /// driver_error.
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
  /// Publishes the acquired slot, which this thread has filled, with up to 256 bytes of metadata.
  /// Waits, at most a second, until streams have published the items before. Throws
  /// invalid_argument (no slot is acquired), message_too_large, timed_out; the last two leave the
  /// slot acquired.
  void publish(std::span<const std::byte> metadata = {}) {
    glue::check(gpushm_producer_publish(handle_.get(), metadata.data(), metadata.size()));
  }
  /// Publishes the acquired slot when `stream` has done what it was given before, and the item
  /// before is published. Several streams, in turn, hide the time that each needs to wait and to
  /// signal. Throws as above, too_many_waits and driver_error.
  void publish(void* stream, std::span<const std::byte> metadata = {}) {
    glue::check(
        gpushm_producer_publish_on(handle_.get(), stream, metadata.data(), metadata.size()));
  }
  /// The acquired slot is not published: the next item gets its number.
  void abandon() { glue::check(gpushm_producer_abandon(handle_.get())); }

  [[nodiscard]] producer_stats stats() const {
    auto got = glue::sized<gpushm_producer_stats>();
    glue::check(gpushm_producer_stats_get(handle_.get(), &got));
    return {got.announced, got.published, got.consumers, got.dropped, got.is_continuation};
  }
  /// Ends the channel, as the destructor does: consumers get the items that are published (those of
  /// the newest item the newest one), and then the end. Waits, at most a second, until streams have
  /// published what they were given. If this producer has continued a channel, waits, at most a
  /// second, until each member has asked for its items; for one that has not, they stay as long as
  /// the client.
  void reset() noexcept { handle_.reset(); }

 private:
  template <typename Acquire>
  [[nodiscard]] std::optional<channel_slot> acquire_by(Acquire&& call,
                                                       std::chrono::milliseconds timeout,
                                                       const std::stop_token& stop) {
    const glue::stop_bridge bridge(stop);
    gpushm_slot got{};
    bool acquired = false;
    glue::check(call(handle_.get(),
                     static_cast<std::int64_t>(timeout.count()),
                     static_cast<const gpushm_stop*>(bridge.handle()),
                     &got,
                     &acquired));
    return acquired ? std::optional(channel_slot{got.data, got.bytes, got.number, got.index})
                    : std::nullopt;
  }
  std::unique_ptr<gpushm_producer, glue::deleter<&gpushm_producer_close>> handle_;
};

/// How a consumer gets items.
enum class consumer_mode : std::uint8_t {
  block = GPUSHM_CONSUMER_BLOCK,    ///< each item; the producer waits for it
  latest = GPUSHM_CONSUMER_LATEST,  ///< the newest item; the producer does not wait
  /// Shares the work: each item is for one of the consumers of this mode, the one with most room.
  /// What one of them has not released when it ends is given to another one, if there is one. The
  /// producer waits if each of them has as many items as it may hold.
  share = GPUSHM_CONSUMER_SHARE,
};

struct consumer_options {
  consumer_mode mode = consumer_mode::block;
  /// Items that it may hold, 1 to 16: for `latest`, 0: 1; for `share`, those that it is given
  /// before it has released one, 0: 2.
  std::uint32_t held = 0;
  std::string device = {};  ///< the GPU that reads, as in `open_options`
  /// For the channel's name, and for the producer's answer.
  std::chrono::milliseconds timeout{10'000};
  std::stop_token stop = {};
};

/// An item that a consumer reads: valid until it is released.
class channel_item {
 public:
  explicit channel_item(const gpushm_item& from) noexcept : item_(from) {}
  /// A device pointer, or host memory.
  [[nodiscard]] const void* data() const noexcept { return item_.data; }
  /// Of the slot.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return item_.bytes; }
  /// From 1; numbers grow, but for items that a dead consumer of the mode `share` had.
  [[nodiscard]] std::uint64_t number() const noexcept { return item_.number; }
  /// Numbers since the previous item, or since it has joined, that this consumer did not get: items
  /// that were replaced by newer ones, and those that a dead producer has announced and not
  /// completed. Of `share`: 0.
  [[nodiscard]] std::uint64_t skipped() const noexcept { return item_.skipped; }
  /// Of the slot.
  [[nodiscard]] std::uint32_t index() const noexcept { return item_.index; }
  [[nodiscard]] std::span<const std::byte> metadata() const noexcept {
    return std::as_bytes(std::span(item_.metadata)).first(item_.metadata_bytes);
  }

 private:
  gpushm_item item_;
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
  /// (the producer does not answer), cancelled, and as `client::open`.
  [[nodiscard]] static channel_consumer open(const client& by,
                                             std::string_view name,
                                             const consumer_options& options = {}) {
    const glue::stop_bridge bridge(options.stop);
    auto wanted = glue::sized<gpushm_consumer_options>();
    wanted.mode = static_cast<gpushm_consumer_mode>(options.mode);
    wanted.held = options.held;
    wanted.device = glue::text(options.device);
    wanted.timeout_ms = options.timeout.count();
    wanted.stop = bridge.handle();
    channel_consumer result;
    gpushm_consumer* opened = nullptr;
    glue::check(gpushm_consumer_open(by.handle(), glue::text(name), &wanted, &opened));
    result.handle_.reset(opened);
    return result;
  }

  /// Waits for the next item, or for the newest one, at most `timeout`; nothing after that, when
  /// `stop` was requested, or at the end (`has_ended`). Throws `error`: peer_died (the producer has
  /// died, all its complete items were read (or, by `latest`, are not taken any more), and there
  /// was no new producer in time; a later call goes on when there is one), too_many_requests (it
  /// holds as many items as it may).
  [[nodiscard]] std::optional<channel_item> next(std::chrono::milliseconds timeout,
                                                 const std::stop_token& stop = {}) {
    return next_by(&gpushm_consumer_next, timeout, stop);
  }
  /// As above, for an item that `stream` reads: the stream waits until it is complete; this call
  /// waits only until it is announced. Use one stream for each consumer. After the stream was
  /// synchronized, `check` tells whether all items were complete. Throws too_many_waits,
  /// driver_error.
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
  /// The item will not be read any more. Throws invalid_argument: this consumer does not hold it.
  void release(const channel_item& what) {
    glue::check(gpushm_consumer_release(handle_.get(), what.number()));
  }
  /// The item will not be read any more when `stream` has done what it was given before. A `block`
  /// consumer may release in another order: the producer sees it when all before are released.
  void release(const channel_item& what, void* stream) {
    glue::check(gpushm_consumer_release_on(handle_.get(), stream, what.number()));
  }
  /// Throws `errc::peer_died` if the producer died before an item was complete that a stream of
  /// this consumer was given: what the stream has done since the last check must not be trusted.
  /// Reports it once.
  void check() { glue::check(gpushm_consumer_check(handle_.get())); }
  /// The producer has closed the channel, and all items were read.
  [[nodiscard]] bool has_ended() const noexcept { return gpushm_consumer_has_ended(handle_.get()); }
  /// Leaves, as the destructor does. Waits, at most a second, until streams have released what they
  /// were given.
  void reset() noexcept { handle_.reset(); }

 private:
  template <typename Next>
  [[nodiscard]] std::optional<channel_item> next_by(Next&& call,
                                                    std::chrono::milliseconds timeout,
                                                    const std::stop_token& stop) {
    const glue::stop_bridge bridge(stop);
    gpushm_item item{};
    bool got = false;
    glue::check(call(handle_.get(),
                     static_cast<std::int64_t>(timeout.count()),
                     static_cast<const gpushm_stop*>(bridge.handle()),
                     &item,
                     &got));
    return got ? std::optional<channel_item>(item) : std::nullopt;
  }
  std::unique_ptr<gpushm_consumer, glue::deleter<&gpushm_consumer_close>> handle_;
};

/// A consumer of a channel, as a process sees it that is not a member.
struct channel_consumer_status {
  consumer_mode mode = consumer_mode::block;
  std::uint32_t may_hold = 0;  ///< items; of `block`: 0
  std::uint32_t holds = 0;     ///< items that it has taken and not released
  bool is_admitted = false;    ///< the producer has answered, and has not refused it
  std::uint32_t uid = 0;       ///< as the broker sees it
  std::int32_t pid = 0;        ///< as the broker sees it; 0: not visible to it
  std::uint64_t start = 0;     ///< its first item; 0: not admitted
  /// The newest item that it has taken, or holds if it is `latest`; 0: none. Of `share`: how
  /// many it was given.
  std::uint64_t taken = 0;
  std::uint64_t released = 0;  ///< as `taken`; of `latest`: 0
  /// Complete items after the last one that it has released, or after the newest one that it holds.
  /// Of `share`: given, and not released.
  std::uint64_t lag = 0;
  gpushm::generation generation = 0;  ///< of its words
};

/// A channel, as a process sees it that is not a member: for tools.
struct channel_status {
  std::uint32_t slots = 0;
  std::uint64_t slot_bytes = 0;
  std::uint64_t first_item = 0;  ///< of this producer
  std::uint64_t announced = 0;   ///< as in `producer_stats`
  std::uint64_t published = 0;
  bool has_producer = false;  ///< false: it has closed the channel, or has died
  bool is_closed = false;     ///< the producer has said that there are no more items
  bool is_writable = false;   ///< as `timeline::is_writable`, of the producer's words
  std::uint32_t producer_uid = 0;
  std::int32_t producer_pid = 0;  ///< as the broker sees it; 0: not visible to it
  std::vector<channel_consumer_status> consumers;

  /// Reads the state of a channel; several round trips to the broker. Changes nothing, and does not
  /// check the words of other processes. Throws `error`: no_such_segment (no channel of this name
  /// has, or had, a producer whose words anybody still has), and as `client::list`.
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
