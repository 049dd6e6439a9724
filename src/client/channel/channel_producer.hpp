// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "channel/producer_table.hpp"
#include "client/channel/call_turn.hpp"
#include "client/channel/handle_table.hpp"
#include "client/channel/join_request.hpp"
#include "client/timeline/timeline_poller.hpp"
#include "client/timeline/timelines.hpp"
#include "gpu/streams/ordered_stores.hpp"
#include "gpushm/channel.h"

namespace gpushm::client_detail {

class channel_producer;

/// A slot that a producer has acquired: what a handle of the C interface stands for.
///
/// Thread-safety: shared objects: safe; what changes is guarded by the producer's mutex.
struct acquired_slot {
  static constexpr std::uintptr_t handle_kind = 1;
  static constexpr std::string_view handle_name = "slot";

  acquired_slot(std::shared_ptr<channel_producer> owner,
                channel::producer_table::choice acquired,
                std::optional<cuda::CUstream> acquired_for) noexcept
      : producer(std::move(owner)), choice(acquired), on(acquired_for) {}

  const std::shared_ptr<channel_producer> producer;
  const channel::producer_table::choice choice;
  const std::optional<cuda::CUstream> on;
  void* handle = nullptr;
  bool is_open = true;  ///< neither published nor abandoned
};

/// A channel's producer; the C interface has the contracts.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class channel_producer : public std::enable_shared_from_this<channel_producer> {
 public:
  struct options {
    std::uint64_t slot_bytes = 0;
    std::uint32_t slots = 0;
    std::string device = "auto";
    bool huge_pages = false;
    std::stop_token stop;
  };
  /// The stream that a call uses, or the CPU.
  using optional_stream = std::optional<cuda::CUstream>;

  channel_producer(std::shared_ptr<timelines> timelines,
                   std::string_view name,
                   const options& options);
  channel_producer(const channel_producer&) = delete;
  channel_producer& operator=(const channel_producer&) = delete;
  ~channel_producer();

  /// Ends the channel. Later calls throw invalid_argument. Once.
  void close() noexcept;
  /// Returns null if there was none in time, `stop` was requested, or it was closed.
  [[nodiscard]] std::shared_ptr<acquired_slot> acquire(optional_stream stream,
                                                       std::chrono::milliseconds timeout,
                                                       const std::stop_token& stop);
  /// As `acquire`, without waiting. If it returns null and sets no `missing`, call `acquire`.
  [[nodiscard]] std::shared_ptr<acquired_slot> try_acquire(
      optional_stream stream, std::optional<watched_timeline>& missing);
  [[nodiscard]] gpushm_slot_info info_of(const acquired_slot& slot) const;
  /// Returns a new handle of the slots' segment.
  [[nodiscard]] gpushm_segment* memory_of(const acquired_slot& slot) const;
  void wait_on(const acquired_slot& slot, cuda::CUstream stream);
  /// Returns the number of the item.
  std::uint64_t publish(acquired_slot& slot,
                        optional_stream stream,
                        std::span<const std::byte> metadata);
  void abandon(acquired_slot& slot);
  [[nodiscard]] gpushm_producer_stats stats() const;
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  using time_point = std::chrono::steady_clock::time_point;
  struct consumer {
    std::shared_ptr<segment_lease> lease;
    timeline_range range;
  };
  /// A consumer that has gone, whose timelines are needed until that item is published.
  struct retired {
    consumer who;
    std::uint64_t until = 0;
  };

  struct previous_producer {
    std::shared_ptr<mapped_page> page;
    std::optional<channel::table_view> table;
  };
  void begin(const options& options);
  [[nodiscard]] std::shared_ptr<segment_lease> reserve_name(time_point deadline,
                                                            const std::stop_token& stop) const;
  [[nodiscard]] bool has_ended_producer() const;
  void begin_publishing();
  void check_slots(const std::optional<channel::table_view>& last) const;
  void await_end(const channel::table_view& last, const std::stop_token& stop) const;
  void continue_channel(const previous_producer& previous);
  void keep_workers_of(const channel::table_view& previous,
                       const std::vector<wire::segment>& present);
  [[nodiscard]] previous_producer find_previous(
      const std::function<bool(const channel::table_view&)>& accepts) const;
  [[nodiscard]] bool has_ended(const channel::consumer_view& view) const;
  [[nodiscard]] bool await_consumers() const;
  /// `missing`: null if the call may wait.
  [[nodiscard]] std::shared_ptr<acquired_slot> acquire_until(
      optional_stream stream,
      time_point until,
      const std::stop_token& stop,
      std::optional<watched_timeline>* missing);
  void check_usable(std::string_view operation) const;
  [[nodiscard]] cuda::CUdeviceptr published_for(cuda::CUstream stream) const;

  // With the lock held.
  void check_open(std::string_view operation) const;
  void check_open(const acquired_slot& slot, std::string_view operation) const;
  void end(acquired_slot& slot) noexcept;
  void drop_gone();
  void drop(std::uint64_t id);
  /// What the acquisition of a slot must wait for; nullopt if it can be acquired.
  struct obstacle {
    sync::timeline_reader on;
    std::uint64_t value;
    std::shared_ptr<const void> keep;  ///< what `on` reads
    std::chrono::microseconds look_again;
  };
  [[nodiscard]] std::optional<obstacle> find_obstacle(
      const std::optional<channel::producer_table::choice>& chosen, optional_stream stream) const;
  /// Returns what the CPU must wait for first, because too many streams wait already.
  [[nodiscard]] std::optional<obstacle> enqueue_waits(cuda::CUstream stream, std::uint64_t after);

  // On the thread that admits consumers.
  void admit_consumers() noexcept;
  void admit_present(const std::vector<wire::segment>& present);
  void admit(const std::string& name, std::uint64_t generation) noexcept;
  [[nodiscard]] bool is_for_this(const join_request& request,
                                 const channel::consumer_view& view) const;

  std::shared_ptr<timelines> timelines_;  // destroyed last
  const std::string name_;
  channel::producer_table::shape shape_;
  const std::uint64_t forks_ = fork_count();
  std::shared_ptr<mapped_page> page_;
  std::shared_ptr<segment_lease> name_lease_;
  segment_ptr slots_;

  mutable std::mutex mutex_;
  std::optional<channel::producer_table> table_;
  std::unordered_map<std::uint64_t, consumer> consumers_;
  std::vector<std::shared_ptr<acquired_slot>> acquired_;
  std::optional<streams::ordered_stores> published_;
  bool is_closed_ = false;
  std::uint32_t dropped_ = 0;
  bool is_continuation_ = false;
  std::vector<retired> retired_;
  /// The `share` consumers of the previous producer, until they have left: they may still read its
  /// slots.
  std::unordered_map<std::uint64_t, consumer> lingering_;
  /// The generation of the previous producer's page, if it has closed the channel; else 0.
  generation previous_page_ = 0;
  std::stop_source stop_;  ///< of everything that waits
  std::jthread admitting_;
};

}  // namespace gpushm::client_detail

/// The handle of the C interface.
struct gpushm_producer {
  std::shared_ptr<gpushm::client_detail::channel_producer> impl;
};
