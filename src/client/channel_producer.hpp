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
#include "client/channel_claim.hpp"
#include "client/client_impl.hpp"
#include "gpushm/channel.h"

/// The handle of the C interface, which has the contracts.
///
/// Thread-safety: distinct objects: safe; shared objects: safe, but one slot is acquired at a time.
struct gpushm_producer {
 public:
  struct options {
    std::uint64_t slot_bytes = 0;
    std::uint32_t slots = 0;
    std::string device = "auto";
    bool huge_pages = false;
    std::stop_token stop;
  };
  /// What a call uses: a stream, or the CPU.
  using where = std::optional<gpushm::cuda::CUstream>;

  gpushm_producer(std::shared_ptr<gpushm::detail::client_impl> client,
                  std::string_view name,
                  const options& wanted);
  gpushm_producer(const gpushm_producer&) = delete;
  gpushm_producer& operator=(const gpushm_producer&) = delete;
  ~gpushm_producer();

  /// Nothing: not in time, or stopped.
  [[nodiscard]] std::optional<gpushm_slot> acquire(where on,
                                                   std::chrono::milliseconds timeout,
                                                   const std::stop_token& stop);
  void publish(where on, std::span<const std::byte> metadata);
  void abandon();
  [[nodiscard]] gpushm_producer_stats stats() const;
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  using time_point = std::chrono::steady_clock::time_point;
  struct consumer {
    std::shared_ptr<gpushm::detail::segment_lease> lease;
    gpushm::detail::own_words words;
  };
  /// One that has gone, whose words are needed until that item is published.
  struct retired {
    consumer who;
    std::uint64_t until = 0;
  };

  struct former_producer {
    std::shared_ptr<gpushm::detail::mapped_page> page;
    std::optional<gpushm::channel::table_view> table;
  };
  void begin(const options& wanted);
  void check_slots(const std::optional<gpushm::channel::table_view>& last) const;
  void await_end(const gpushm::channel::table_view& last, const std::stop_token& stop) const;
  void continue_channel(const former_producer& former);
  void keep_workers_of(const gpushm::channel::table_view& dead,
                       const std::vector<gpushm::wire::segment>& present);
  [[nodiscard]] former_producer find_former(
      const std::function<bool(const gpushm::channel::table_view&)>& accepts) const;
  [[nodiscard]] bool has_ended(const gpushm::channel::member& which) const;
  [[nodiscard]] bool await_members() const;
  void check_usable(std::string_view operation) const;
  [[nodiscard]] gpushm::cuda::CUdeviceptr published_for(gpushm::cuda::CUstream stream) const;

  // With the lock held.
  [[nodiscard]] bool await_publication(where on, std::uint64_t number);
  void drop_gone();
  void drop(std::uint64_t id);
  /// The consumer whose `word` has not reached `value`.
  [[nodiscard]] const gpushm::channel::member* behind(std::uint32_t word,
                                                      std::uint64_t value) const;
  /// What the acquisition of a slot must wait for; nothing: it can be claimed.
  struct obstacle {
    gpushm::sync::timeline_reader on;
    std::uint64_t value;
    std::shared_ptr<const void> keep;  ///< what `on` reads
    std::chrono::microseconds look_again;
  };
  [[nodiscard]] std::optional<obstacle> find_obstacle(
      const std::optional<gpushm::channel::producer_table::choice>& what, where on) const;
  void enqueue_waits(gpushm::cuda::CUstream stream,
                     std::uint64_t after,
                     time_point until,
                     const std::stop_token& stop);

  // On the thread that admits consumers.
  void admit_consumers() noexcept;
  void admit_present(const std::vector<gpushm::wire::segment>& present);
  void admit(const std::string& name, std::uint64_t generation) noexcept;
  [[nodiscard]] bool is_for_this(const gpushm::detail::channel_claim& claim,
                                 const gpushm::channel::member& which) const;

  std::shared_ptr<gpushm::detail::client_impl> client_;  // destroyed last
  const std::string name_;
  gpushm::channel::producer_table::shape shape_;
  const std::uint64_t forks_ = gpushm::detail::fork_count();
  std::shared_ptr<gpushm::detail::mapped_page> page_;
  std::shared_ptr<gpushm::detail::segment_lease> claim_;
  gpushm::detail::segment_ptr slots_;

  mutable std::mutex mutex_;
  std::optional<gpushm::channel::producer_table> table_;
  std::unordered_map<std::uint64_t, consumer> consumers_;
  std::optional<gpushm::channel::producer_table::choice> acquired_;
  where last_stream_;  ///< that has published
  std::uint32_t dropped_ = 0;
  bool is_continuation_ = false;
  std::vector<retired> retired_;
  /// Those that shared the work of the producer before, until they have left: what its items are in
  /// may still be read.
  std::unordered_map<std::uint64_t, consumer> lingering_;
  /// Of the producer before, if that has closed the channel; else 0.
  gpushm::generation former_page_ = 0;
  std::stop_source stop_;
  std::jthread admitting_;
};
