// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "gpu/driver/cuda_abi.hpp"
#include "sync/timeline_page.hpp"

namespace gpushm::streams {

class waiting_streams;

/// A wait that is counted, and that will be enqueued: its end uncounts it, unless it is committed.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class counted_wait {
 public:
  /// One that need not be counted, because it is met already.
  counted_wait() noexcept = default;
  counted_wait(waiting_streams& streams, std::uint64_t stream, std::uint64_t number) noexcept
      : in_(&streams), stream_(stream), number_(number) {}
  counted_wait(const counted_wait&) = delete;
  counted_wait& operator=(const counted_wait&) = delete;
  counted_wait(counted_wait&& other) noexcept
      : in_(std::exchange(other.in_, nullptr)), stream_(other.stream_), number_(other.number_) {}
  counted_wait& operator=(counted_wait&& other) noexcept {
    std::swap(in_, other.in_);
    std::swap(stream_, other.stream_);
    std::swap(number_, other.number_);
    return *this;
  }
  ~counted_wait();

  /// The wait was enqueued: it is counted until it is met.
  void commit() noexcept { in_ = nullptr; }

 private:
  waiting_streams* in_ = nullptr;
  std::uint64_t stream_ = 0;
  std::uint64_t number_ = 0;
};

/// The streams of this process that may be waiting for a word. As many of them as CUDA has
/// connections (CUDA_DEVICE_MAX_CONNECTIONS, 8 unless set, at most 32) stop all other streams of
/// the process, also those that would signal what they wait for.
///
/// Thread-safety: shared objects: safe.
class waiting_streams {
 public:
  /// The object of this process; never destroyed.
  [[nodiscard]] static waiting_streams& of_process();

  /// `connections`: as CUDA uses them.
  explicit waiting_streams(std::uint32_t connections) noexcept;

  /// Counts a wait for `condition` that will be enqueued on the stream with the id `stream`
  /// (streams::stream_id). Returns nullopt, and counts nothing, if that stream would be one too
  /// many. `owner` keeps what `reader` reads.
  [[nodiscard]] std::optional<counted_wait> add(std::uint64_t stream,
                                                const sync::timeline_reader& reader,
                                                const sync::condition& condition,
                                                std::shared_ptr<const void> owner);
  /// Streams with a wait that has not been seen met.
  [[nodiscard]] std::size_t count();
  /// Upper bound of these: half of the connections, rounded up, but not the last one.
  [[nodiscard]] std::uint32_t limit() const noexcept { return limit_; }
  [[nodiscard]] std::uint32_t connections() const noexcept { return connections_; }

 private:
  friend counted_wait;

  struct pending {
    std::uint64_t number;
    sync::timeline_reader on;
    sync::condition wanted;
    std::shared_ptr<const void> owner;
  };
  using queue = std::vector<pending>;
  /// Moves the waits that are met to `ended`.
  static void drop_met(queue& waits, queue& ended);
  void drop_met(queue& ended);
  void cancel(std::uint64_t stream, std::uint64_t number) noexcept;

  const std::uint32_t connections_;
  const std::uint32_t limit_;
  std::mutex mutex_;
  std::uint64_t last_number_ = 0;
  std::map<std::uint64_t, queue> streams_;  ///< by the id of the stream
};

inline counted_wait::~counted_wait() {
  if (in_ != nullptr) {
    in_->cancel(stream_, number_);
  }
}

/// The number of connections by the environment, as CUDA reads it.
[[nodiscard]] std::uint32_t connections_of_process() noexcept;

}  // namespace gpushm::streams
