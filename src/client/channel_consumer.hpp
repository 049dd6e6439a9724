// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "channel/consumer_table.hpp"
#include "client/client_impl.hpp"
#include "gpushm/channel.h"

/// The handle of the C interface, which has the contracts.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
struct gpushm_consumer {
 public:
  struct options {
    gpushm::channel::consumer_mode mode = gpushm::channel::consumer_mode::block;
    std::uint32_t held = 0;
    std::string device;
    std::chrono::milliseconds timeout{0};
    std::stop_token stop;
  };
  /// What a call uses: a stream, or the CPU.
  using where = std::optional<gpushm::cuda::CUstream>;

  gpushm_consumer(std::shared_ptr<gpushm::detail::client_impl> client,
                  std::string_view name,
                  const options& wanted);
  gpushm_consumer(const gpushm_consumer&) = delete;
  gpushm_consumer& operator=(const gpushm_consumer&) = delete;
  ~gpushm_consumer();

  /// Nothing: not in time, stopped, or the channel has ended.
  [[nodiscard]] std::optional<gpushm_item> next(where on,
                                                std::chrono::milliseconds timeout,
                                                const std::stop_token& stop);
  void release(where on, std::uint64_t number);
  void check();
  [[nodiscard]] bool has_ended() const;
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  using time_point = std::chrono::steady_clock::time_point;
  using item = gpushm::channel::consumer_table::item;
  /// What it has not released, in the order of numbers.
  struct held_item {
    std::uint64_t number;
    std::uint32_t held_word;
    std::uint64_t release;  ///< what is stored in the word for it and all before
    bool released;
    std::shared_ptr<const gpushm_segment> slots;  ///< what it is in
  };

  void join_any(time_point until, const std::stop_token& stop);
  [[nodiscard]] bool join(gpushm::detail::client_impl::opened_words producer,
                          time_point until,
                          const std::stop_token& stop);
  [[nodiscard]] bool join_next_producer(time_point until, const std::stop_token& stop);
  [[nodiscard]] bool go_on(time_point until, const std::stop_token& stop);
  [[nodiscard]] bool await_releases(time_point until) const;
  enum class attachment : std::uint8_t {
    done,
    not_in_time,         ///< there was no producer, or no answer of one
    producer_has_ended,  ///< that of `first`
    is_unknown,          ///< the next producer does not know this member of the one before
  };
  /// Throws if it was refused. `first`: the producer's words, if they are open.
  [[nodiscard]] attachment attach(time_point until,
                                  const std::stop_token& stop,
                                  gpushm::detail::client_impl::opened_words first);
  [[nodiscard]] std::shared_ptr<gpushm::detail::mapped_page> next_page() const;
  void open_slots(const gpushm::channel::table_view& producer);
  [[nodiscard]] bool try_open_slots(const gpushm::channel::table_view& producer);
  void check_usable(std::string_view operation) const;
  [[nodiscard]] std::optional<item> take(time_point until, const std::stop_token& stop);
  [[nodiscard]] bool wait_for_items(gpushm::channel::consumer_table::outcome why,
                                    time_point until,
                                    const std::stop_token& stop);
  [[nodiscard]] bool wait_until_complete(where on,
                                         const item& taken,
                                         time_point until,
                                         const std::stop_token& stop);
  void note_last_producer();
  [[nodiscard]] gpushm_item describe(const item& taken) const;
  [[nodiscard]] gpushm::sync::timeline_writer own_word(std::uint32_t index) const;
  [[nodiscard]] gpushm::cuda::CUdeviceptr own_address(std::uint32_t word,
                                                      gpushm::cuda::CUstream stream) const;

  std::shared_ptr<gpushm::detail::client_impl> client_;  // destroyed last
  const std::string name_;
  const options options_;
  const std::uint32_t word_count_;
  const std::uint64_t forks_ = gpushm::detail::fork_count();
  gpushm::detail::own_words words_;
  std::shared_ptr<gpushm::detail::segment_lease> claim_;
  std::shared_ptr<gpushm::detail::segment_lease> producer_lease_;
  std::shared_ptr<gpushm::detail::mapped_page> producer_page_;
  std::shared_ptr<gpushm_segment> slots_;  ///< changed by `next` only, with both locks held
  std::uint64_t slots_generation_ = 0;
  /// Of producers before, which a stream may still read, although the items were released on it.
  std::vector<std::shared_ptr<gpushm_segment>> former_slots_;
  bool streams_read_ = false;

  std::mutex next_mutex_;        ///< held by `next`, also while it waits
  std::optional<item> pending_;  ///< taken, and not complete when the call before had to return
  std::atomic<bool> ended_{false};
  /// A producer that may not know this consumer, and since when `next` has seen it.
  struct doubtful {
    std::uint64_t producer = 0;
    std::chrono::steady_clock::time_point since{};
  };
  doubtful doubtful_;

  mutable std::mutex mutex_;  ///< for short; acquired after the other one
  /// Changed by `next` only, with both locks held.
  std::optional<gpushm::channel::consumer_table> table_;
  std::deque<held_item> held_;
  std::uint64_t expected_ = 1;    ///< the number of the next item if none is skipped
  std::uint64_t released_ = 0;    ///< the last value of the word, also one that a stream will store
  std::uint64_t on_streams_ = 0;  ///< the last item that a stream was given
  bool streams_release_ = false;
  bool lost_ = false;  ///< a stream was given an item that was never complete
};
