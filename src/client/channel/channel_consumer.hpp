// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "channel/consumer_table.hpp"
#include "client/channel/call_turn.hpp"
#include "client/channel/handle_table.hpp"
#include "client/timeline/timeline_poller.hpp"
#include "client/timeline/timelines.hpp"
#include "gpu/streams/event.hpp"
#include "gpu/streams/ordered_stores.hpp"
#include "gpushm/channel.h"

namespace gpushm::client_detail {

class channel_consumer;

/// An item that a consumer has taken: what a handle of the C interface stands for.
///
/// Thread-safety: shared objects: safe; what changes is guarded by the consumer's mutex.
struct taken_item {
  static constexpr std::uintptr_t handle_kind = 2;
  static constexpr std::string_view handle_name = "item";
  /// The stream that it was taken for, or the CPU.
  using optional_stream = std::optional<cuda::CUstream>;

  std::shared_ptr<channel_consumer> consumer;
  channel::consumer_table::item item;
  optional_stream on;
  std::uint64_t skipped = 0;
  std::shared_ptr<gpushm_segment> slots;  ///< what it is in
  std::shared_ptr<mapped_page> producer;  ///< whose timeline shows whether it is complete
  void* handle = nullptr;

  bool is_held = true;
  /// The end of a release on a stream that came before the release of an earlier item.
  std::optional<streams::stream_point> finished;
};

/// A channel's consumer; the C interface has the contracts.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class channel_consumer : public std::enable_shared_from_this<channel_consumer> {
 public:
  struct options {
    channel::consumer_mode mode = channel::consumer_mode::block;
    std::uint32_t held = 0;
    std::string device;
    std::chrono::milliseconds timeout{0};
    std::stop_token stop;
    std::chrono::milliseconds resume{0};  ///< forever: without a limit of its own
  };
  using optional_stream = taken_item::optional_stream;

  channel_consumer(std::shared_ptr<timelines> timelines,
                   std::string_view name,
                   const options& options);
  channel_consumer(const channel_consumer&) = delete;
  channel_consumer& operator=(const channel_consumer&) = delete;
  ~channel_consumer();

  /// Leaves. Later calls throw invalid_argument. Once.
  void close() noexcept;
  /// Returns null if there was none in time, `stop` was requested, the channel has ended, or this
  /// was closed.
  [[nodiscard]] std::shared_ptr<taken_item> next(optional_stream stream,
                                                 std::chrono::milliseconds timeout,
                                                 const std::stop_token& stop);
  /// As `next` for the CPU, without waiting. If it returns null and sets no `missing`, call `next`.
  [[nodiscard]] std::shared_ptr<taken_item> try_next(std::optional<watched_timeline>& missing);
  [[nodiscard]] gpushm_item_info info_of(const taken_item& item) const;
  /// Returns a new handle of the slots' segment.
  [[nodiscard]] gpushm_segment* memory_of(const taken_item& item) const;
  void wait_on(const taken_item& item, cuda::CUstream stream) const;
  void release(taken_item& item, optional_stream stream);
  void check();
  [[nodiscard]] bool has_ended() const;
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  using time_point = std::chrono::steady_clock::time_point;
  using table_item = channel::consumer_table::item;
  /// Limits of a wait for the next producer: until it exists, and until it has replied.
  struct patience {
    time_point for_producer;
    time_point for_reply;
  };

  // channel_joining.cpp: called by the constructor, and in `next`'s turn.
  void join_any(const patience& until, const std::stop_token& stop);
  [[nodiscard]] bool join(opened_timelines producer, time_point until, const std::stop_token& stop);
  [[nodiscard]] bool join_next_producer(const patience& until, const std::stop_token& stop);
  [[nodiscard]] bool go_on(const patience& until, const std::stop_token& stop);
  enum class attachment : std::uint8_t {
    done,
    not_in_time,         ///< there was no producer, or no reply of one
    producer_has_ended,  ///< that of `first`
    is_unknown,          ///< the next producer does not have this consumer of the previous one
  };
  /// Throws if it was refused. `first`: the producer's timelines, if they are open.
  [[nodiscard]] attachment attach(const patience& until,
                                  const std::stop_token& stop,
                                  opened_timelines first);
  [[nodiscard]] std::optional<opened_timelines> next_producer(time_point until,
                                                              const std::stop_token& stop);
  struct admission {
    attachment outcome = attachment::not_in_time;
    std::uint64_t start = 0;  ///< the first item, if `done`
    std::uint32_t entry = 0;  ///< in the producer's table, if `done`
  };
  [[nodiscard]] admission await_admission(const channel::table_view& producer,
                                          bool may_be_unknown,
                                          time_point until,
                                          const std::stop_token& stop) const;
  [[nodiscard]] bool adopt(const channel::table_view& producer,
                           opened_timelines opened,
                           const admission& admitted);
  [[nodiscard]] std::shared_ptr<mapped_page> next_page() const;
  void open_slots(const channel::table_view& producer);
  [[nodiscard]] bool try_open_slots(const channel::table_view& producer);
  [[nodiscard]] error invalid_producer(std::string_view operation) const;

  // In `next`'s turn.
  void begin_next();
  [[nodiscard]] std::optional<table_item> take(time_point until, const std::stop_token& stop);
  [[nodiscard]] bool wait_for_items(channel::consumer_table::outcome why,
                                    time_point until,
                                    const std::stop_token& stop);
  [[nodiscard]] bool wait_for_next_producer(time_point until, const std::stop_token& stop);
  [[nodiscard]] bool wait_until_complete(optional_stream stream,
                                         const table_item& taken,
                                         time_point until,
                                         const std::stop_token& stop);
  [[nodiscard]] std::shared_ptr<taken_item> hold(optional_stream stream, const table_item& taken);

  void check_usable(std::string_view operation) const;
  /// With the lock held.
  void check_open(std::string_view operation) const;
  void check_held(const taken_item& item, std::string_view operation) const;
  void release_newest(const taken_item& item, optional_stream stream);
  void release_in_order(taken_item& item, optional_stream stream);
  void release_kept_back();
  void store_released(optional_stream stream,
                      std::uint64_t value,
                      std::span<const streams::stream_point> points);
  void note_last_producer();
  /// Waits until streams have released their items: later stores would overwrite terminal words.
  /// Returns false on timeout.
  [[nodiscard]] bool await_releases(time_point until, const std::stop_token& stop) const;
  [[nodiscard]] bool is_newest_held_by_stream() const;
  void forget_previous_slots();
  [[nodiscard]] sync::timeline_writer own_timeline(std::uint32_t index) const;
  [[nodiscard]] cuda::CUdeviceptr own_address(std::uint32_t timeline, cuda::CUstream stream) const;

  /// As the broker sees it. In the turn, or with the lock held.
  [[nodiscard]] std::int32_t producer_pid() const;

  std::shared_ptr<timelines> timelines_;  // destroyed last
  const std::string name_;
  const options options_;
  const std::uint32_t timeline_count_;
  const std::uint64_t forks_ = fork_count();
  timeline_range range_;
  std::shared_ptr<segment_lease> joined_lease_;
  std::shared_ptr<segment_lease> producer_lease_;
  std::shared_ptr<mapped_page> producer_page_;
  std::shared_ptr<gpushm_segment> slots_;  ///< changed in `next`'s turn only, with the lock held
  std::uint64_t slots_generation_ = 0;
  /// Slots of previous producers that a stream may still read, although their items were released
  /// on it.
  std::vector<std::shared_ptr<gpushm_segment>> previous_slots_;

  call_turn turn_;                     ///< of `next`, also while it waits
  std::optional<table_item> pending_;  ///< taken, and not complete when `next` had to return
  std::atomic<bool> ended_{false};
  /// When `next` first saw that the producer has died.
  std::optional<time_point> died_at_;
  std::int32_t previous_pid_ = 0;  ///< its process, if `died_at_`
  /// A producer that may not have this consumer, and when `next` first saw it.
  struct doubtful {
    std::uint64_t producer = 0;
    time_point since{};
  };
  doubtful doubtful_;

  mutable std::mutex mutex_;  ///< for short; acquired in the turn, or without it
  /// Changed in `next`'s turn only, with the lock held.
  std::optional<channel::consumer_table> table_;
  std::deque<std::shared_ptr<taken_item>> held_;       ///< in the order of numbers
  std::uint64_t expected_ = 1;                         ///< the next number if none is skipped
  std::unique_ptr<streams::ordered_stores> released_;  ///< null before the first producer
  std::uint64_t on_streams_ = 0;                       ///< the last item that a stream was given
  bool streams_release_ = false;
  /// The process of a producer whose item a stream was given and was never complete.
  std::optional<std::int32_t> lost_;
  bool is_closed_ = false;
  std::stop_source stop_;  ///< of everything that waits
};

}  // namespace gpushm::client_detail

/// The handle of the C interface.
struct gpushm_consumer {
  std::shared_ptr<gpushm::client_detail::channel_consumer> impl;
};
