// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "driver/cuda_abi.hpp"
#include "sync/signal_page.hpp"

namespace gpushm::streams {

/// The streams of this process that may be waiting for a word. As many of them as CUDA has
/// connections (CUDA_DEVICE_MAX_CONNECTIONS, 8 unless set, at most 32) stop all other streams of
/// the process, also those that would signal what they wait for.
///
/// Thread-safety: shared objects: safe.
class waiting_streams {
 public:
  /// Of this process; never destroyed.
  [[nodiscard]] static waiting_streams& of_process();

  /// `connections`: as CUDA uses them.
  explicit waiting_streams(std::uint32_t connections) noexcept;

  /// Counts a wait for `wanted` that will be enqueued on `stream`. Returns false, and counts
  /// nothing, if that stream would be one too many. `owner` keeps what `on` reads.
  [[nodiscard]] bool add(cuda::CUstream stream,
                         const sync::timeline_reader& on,
                         const sync::condition& wanted,
                         std::shared_ptr<const void> owner);
  /// Streams with a wait that has not been seen met.
  [[nodiscard]] std::size_t count();
  /// Upper bound of these: half of the connections, rounded up, but not the last one.
  [[nodiscard]] std::uint32_t limit() const noexcept { return limit_; }
  [[nodiscard]] std::uint32_t connections() const noexcept { return connections_; }

 private:
  struct pending {
    sync::timeline_reader on;
    sync::condition wanted;
    std::shared_ptr<const void> owner;
  };
  using queue = std::vector<pending>;
  /// Moves the waits that are met to `ended`.
  static void drop_met(queue& waits, queue& ended);
  void drop_met(queue& ended);

  const std::uint32_t connections_;
  const std::uint32_t limit_;
  std::mutex mutex_;
  std::map<cuda::CUstream, queue> streams_;
};

/// Of the environment, as CUDA reads it.
[[nodiscard]] std::uint32_t connections_of_process() noexcept;

}  // namespace gpushm::streams
