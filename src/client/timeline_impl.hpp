// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "client/client_impl.hpp"
#include "client/signal_pages.hpp"
#include "gpushm/timeline.h"
#include "streams/stream_operations.hpp"
#include "sync/signal_page.hpp"

/// The handle of the C interface.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
struct gpushm_timeline {
 public:
  /// Takes over the words of a timeline that this process has published, or has opened.
  gpushm_timeline(std::shared_ptr<gpushm::detail::client_impl> client,
                  std::shared_ptr<gpushm::detail::segment_lease> lease,
                  gpushm::detail::own_words words,
                  bool is_own);
  gpushm_timeline(const gpushm_timeline&) = delete;
  gpushm_timeline& operator=(const gpushm_timeline&) = delete;
  /// See gpushm_timeline_close.
  ~gpushm_timeline();

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] bool is_own() const noexcept { return is_own_; }
  [[nodiscard]] std::uint64_t value(std::string_view operation) const;

  // gpushm.hpp's `timeline` has the contracts of these.
  void signal(std::uint64_t value);
  [[nodiscard]] bool wait(std::uint64_t value,
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
  void check_usable(std::string_view operation) const;
  [[nodiscard]] gpushm::cuda::CUdeviceptr address_for(gpushm::cuda::CUstream stream,
                                                      std::string_view operation) const;
  void check_own(std::string_view operation) const;
  void check_value(std::string_view operation, std::uint64_t value) const;
  [[noreturn]] void throw_not_larger(std::string_view operation, std::uint64_t value) const;
  [[nodiscard]] gpushm::error ended(std::string_view operation, std::uint64_t value) const;
  void count_wait(gpushm::cuda::CUstream stream,
                  std::uint64_t value,
                  std::chrono::milliseconds timeout) const;
  void note_wait(std::uint64_t value) const noexcept;

  std::shared_ptr<gpushm::detail::client_impl> client_;  // destroyed last
  std::shared_ptr<gpushm::detail::segment_lease> lease_;
  gpushm::detail::own_words words_;
  const bool is_own_;
  const std::string name_;
  const std::uint64_t forks_ = gpushm::detail::fork_count();
  gpushm::sync::timeline_reader reader_;
  std::mutex mutex_;              // held while a signal is enqueued, so that values only grow
  std::uint64_t signaled_ = 0;    ///< by this process, or enqueued
  std::uint64_t on_streams_ = 0;  ///< enqueued
  mutable std::atomic<std::uint64_t> waited_for_{0};  ///< by streams
};
