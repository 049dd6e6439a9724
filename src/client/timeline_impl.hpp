// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "client/client_impl.hpp"
#include "client/signal_pages.hpp"
#include "gpushm/timeline.h"
#include "streams/stream_operations.hpp"
#include "sync/cpu_wait.hpp"
#include "sync/signal_page.hpp"
#include "wire/ticket.hpp"

struct gpushm_graph_operations;

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
  /// Takes over the words of a timeline that this process has published, or has opened. `value`: of
  /// a timeline that this process has taken over.
  gpushm_timeline(std::shared_ptr<gpushm::detail::client_impl> client,
                  std::shared_ptr<gpushm::detail::segment_lease> lease,
                  gpushm::detail::own_words words,
                  role as,
                  std::uint64_t value = 0);
  /// One without a broker, and the ticket of its word.
  gpushm_timeline(gpushm::detail::own_words words, role as, gpushm::wire::ticket described);
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
  [[nodiscard]] bool is_writable() const { return now()->words.page->is_writable(); }
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
  void set_flags(std::uint64_t flags);
  [[nodiscard]] bool wait_flags(std::uint64_t flags,
                                std::chrono::milliseconds timeout,
                                const std::stop_token& stop) const;
  void check() const;

  void prepare(gpushm::cuda::CUstream stream) const;
  void signal_on(gpushm::cuda::CUstream stream, std::uint64_t value);
  void wait_on(gpushm::cuda::CUstream stream,
               std::uint64_t value,
               std::chrono::milliseconds timeout) const;
  /// Enqueues `what`, on timelines of one process.
  static void batch(gpushm::cuda::CUstream stream,
                    std::span<const gpushm_stream_operation> what,
                    std::chrono::milliseconds timeout);

 private:
  friend gpushm_graph_operations;

  [[nodiscard]] static std::vector<gpushm::streams::operation> operations_of(
      gpushm::cuda::CUstream stream,
      std::span<const gpushm_stream_operation> what,
      std::string_view name,
      std::chrono::milliseconds timeout);
  static void with_larger_values(std::span<const gpushm_stream_operation> what,
                                 std::string_view name,
                                 const std::function<void()>& enqueue);
  static void count_waits(gpushm::cuda::CUstream stream,
                          std::span<const gpushm_stream_operation> what,
                          std::chrono::milliseconds timeout);
  static void note_recorded(std::span<const gpushm_stream_operation> what);

  [[nodiscard]] bool wait_until(const gpushm::sync::condition& wanted,
                                std::chrono::milliseconds timeout,
                                const std::stop_token& stop) const;
  /// Where the word is.
  struct place {
    std::shared_ptr<gpushm::detail::segment_lease> lease;
    gpushm::detail::own_words words;
    gpushm::sync::timeline_reader reader;
  };
  [[nodiscard]] std::shared_ptr<const place> now() const;
  /// Of this process's own.
  [[nodiscard]] gpushm::sync::timeline_writer writer() const;
  void follow(const std::shared_ptr<const place>& from,
              std::chrono::milliseconds timeout,
              const std::stop_token& stop) const;
  void follow_if_moved(std::chrono::milliseconds timeout) const;
  [[nodiscard]] gpushm::sync::wait_result wait_at(const place& at,
                                                  const gpushm::sync::condition& wanted,
                                                  std::chrono::milliseconds timeout,
                                                  const std::stop_token& stop) const;
  [[nodiscard]] bool await_last_store() const;

  void check_usable(std::string_view operation) const;
  [[nodiscard]] gpushm::cuda::CUdeviceptr address_for(gpushm::cuda::CUstream stream,
                                                      std::string_view operation) const;
  void check_own(std::string_view operation) const;
  void check_value(std::string_view operation, std::uint64_t value) const;
  void check_flags(std::string_view operation, std::uint64_t flags) const;
  void check_kind(std::string_view operation,
                  bool wants_flags,
                  bool has_flags,
                  std::uint64_t signaled) const;
  [[noreturn]] void throw_not_larger(std::string_view operation, std::uint64_t value) const;
  [[nodiscard]] gpushm::error ended(std::string_view operation, std::uint64_t value) const;
  void count_wait(gpushm::cuda::CUstream stream,
                  const gpushm::sync::condition& wanted,
                  std::chrono::milliseconds timeout) const;
  void note_wait(std::uint64_t value) const noexcept;

  void check_has_broker(std::string_view operation) const;

  std::shared_ptr<gpushm::detail::client_impl> client_;  // destroyed last; null without a broker
  const gpushm::wire::ticket without_broker_;
  const role role_;
  const std::string name_;
  const std::uint64_t forks_ = gpushm::detail::fork_count();
  mutable std::mutex place_mutex_;  ///< for short
  /// Changes when another process has taken the timeline over; never of an own one.
  mutable std::shared_ptr<const place> place_;
  mutable std::vector<std::shared_ptr<const place>> earlier_;  ///< streams may still read them
  /// The signaler has changed before a value was reached for which a stream was to wait.
  mutable bool moved_too_soon_ = false;

  std::mutex mutex_;              // held while a signal is enqueued, so that values only grow
  const std::uint64_t initial_;   ///< of what this process signals
  std::uint64_t signaled_;        ///< by this process, or enqueued
  std::uint64_t on_streams_ = 0;  ///< enqueued
  bool has_flags_ = false;
  mutable std::atomic<std::uint64_t> waited_for_{0};  ///< by streams
  std::atomic<bool> streams_wait_for_flags_{false};
};

namespace gpushm::detail {

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

}  // namespace gpushm::detail
