// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "client/timeline/place_follower.hpp"
#include "client/timeline/timeline_pages.hpp"
#include "client/timeline/timeline_poller.hpp"
#include "client/timeline/timelines.hpp"
#include "gpu/streams/ordered_stores.hpp"
#include "gpushm/timeline.h"
#include "protocol/wire/ticket.hpp"
#include "sync/cpu_wait.hpp"
#include "sync/timeline_page.hpp"

struct gpushm_graph_operations;
namespace gpushm::client_detail {
class planned_operations;
}  // namespace gpushm::client_detail

/// The handle of the C interface.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
struct gpushm_timeline {
 public:
  enum class role : std::uint8_t {
    waiter,
    waiter_of_segment,
    signaler,
    signaler_for_segment,
  };
  /// Owns a timeline that this process has published, or has opened. `value`: its last value, if
  /// this process has taken it over.
  gpushm_timeline(std::shared_ptr<gpushm::client_detail::timelines> timelines,
                  std::shared_ptr<gpushm::client_detail::segment_lease> lease,
                  gpushm::client_detail::timeline_range range,
                  role role,
                  std::uint64_t value = 0);
  /// Owns a timeline without a broker, and its ticket.
  gpushm_timeline(gpushm::client_detail::timeline_range range,
                  role role,
                  gpushm::wire::ticket described);
  gpushm_timeline(const gpushm_timeline&) = delete;
  gpushm_timeline& operator=(const gpushm_timeline&) = delete;
  /// See gpushm_timeline_close.
  ~gpushm_timeline();

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] bool is_own() const noexcept {
    return role_ == role::signaler || role_ == role::signaler_for_segment;
  }
  /// See gpushm_export_timeline.
  [[nodiscard]] gpushm::wire::ticket describe(std::string_view socket_path) const;
  [[nodiscard]] bool is_writable() const { return place_.now()->range().page->is_writable(); }
  [[nodiscard]] std::uint64_t value(std::string_view operation) const;

  // gpushm.hpp's `timeline` has the contracts of these.
  /// This object must not be used after that.
  void hand_over();
  [[nodiscard]] std::unique_ptr<gpushm_timeline> take_over(std::chrono::milliseconds timeout,
                                                           const std::stop_token& stop) const;
  void signal(std::uint64_t value);
  [[nodiscard]] bool wait(std::uint64_t value,
                          std::chrono::milliseconds timeout,
                          const std::stop_token& stop) const;
  /// Whether the value is reached. If it returns false and sets no `missing`, call `wait`.
  [[nodiscard]] bool try_wait(
      std::uint64_t value, std::optional<gpushm::client_detail::watched_timeline>& missing) const;
  void set_flags(std::uint64_t flags);
  [[nodiscard]] bool wait_flags(std::uint64_t flags,
                                std::chrono::milliseconds timeout,
                                const std::stop_token& stop) const;
  void check() const;

  void prepare(gpushm::cuda::CUstream stream) const;
  /// Enqueues one or more operations of timelines of this process: the only way to a stream.
  static void batch(gpushm::cuda::CUstream stream,
                    std::span<const gpushm_stream_operation> operations,
                    std::chrono::milliseconds timeout,
                    std::string_view operation = "batch");

 private:
  friend gpushm::client_detail::planned_operations;
  friend gpushm_graph_operations;

  using place_ptr = gpushm::client_detail::place_follower::place_ptr;

  [[nodiscard]] bool wait_until(const gpushm::sync::condition& condition,
                                std::chrono::milliseconds timeout,
                                const std::stop_token& stop) const;
  void follow(const place_ptr& place,
              std::chrono::milliseconds timeout,
              const std::stop_token& stop) const;
  /// For a stream's wait: a timeline that was handed over no longer ends waits.
  [[nodiscard]] place_ptr place_to_wait(std::chrono::milliseconds timeout) const;
  [[nodiscard]] gpushm::cuda::CUdeviceptr word_address(gpushm::cuda::CUstream stream,
                                                       std::string_view operation) const;
  void await_stores_for(std::string_view operation);
  void end_word(gpushm::sync::word_kind kind) noexcept;
  void give_up_name() const noexcept;

  void check_usable(std::string_view operation) const;
  void check_own(std::string_view operation) const;
  void check_value(std::string_view operation, std::uint64_t value) const;
  void check_flags(std::string_view operation, std::uint64_t flags) const;
  void check_kind(std::string_view operation,
                  bool wants_flags,
                  bool has_flags,
                  std::uint64_t signaled) const;
  [[noreturn]] void throw_invalid_value(std::string_view operation) const;
  [[noreturn]] void throw_not_larger(std::string_view operation, std::uint64_t value) const;
  void check_not_ended(std::string_view operation, std::uint64_t value) const;
  /// The process that signals, or has signaled, this place; 0: not known.
  [[nodiscard]] std::int32_t signaler_of(
      const gpushm::client_detail::mapped_place& place) const noexcept;
  [[nodiscard]] gpushm::error ended(const gpushm::client_detail::mapped_place& place,
                                    std::string_view operation,
                                    std::uint64_t value) const;

  void check_has_broker(std::string_view operation) const;

  std::shared_ptr<gpushm::client_detail::timelines>
      timelines_;  // destroyed last; null without a broker
  const gpushm::wire::ticket without_broker_;
  const role role_;
  const std::string name_;
  const std::uint64_t forks_ = gpushm::client_detail::fork_count();
  /// If this process signals the timeline, its place never changes.
  mutable gpushm::client_detail::place_follower place_;

  /// The lifetime of this object, for objects that refer to it without owning it.
  struct life {
    std::shared_mutex mutex;  ///< shared: the object is in use
    bool is_closed = false;
  };
  const std::shared_ptr<life> life_ = std::make_shared<life>();

  std::mutex mutex_;             // held while a signal is enqueued, so that values only grow
  const std::uint64_t initial_;  ///< of what this process signals
  std::uint64_t signaled_;       ///< by this process, or enqueued
  bool has_flags_ = false;
  std::optional<gpushm::streams::ordered_stores> stores_;  ///< of an own one
  /// A graph has stores to this word, and can be launched at any time: no other timeline may use
  /// the word.
  bool is_captured_ = false;
};

namespace gpushm::client_detail {

/// Throws `errc::invalid_argument` for null.
template <typename Timeline>
[[nodiscard]] Timeline& filled_timeline(Timeline* timeline) {
  if (timeline == nullptr) {
    throw error(errc::invalid_argument,
                "timeline",
                {},
                "this timeline object is empty",
                "create or open a timeline first; a moved-from object is empty");
  }
  return *timeline;
}

}  // namespace gpushm::client_detail
