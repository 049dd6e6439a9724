// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "driver/cuda_abi.hpp"
#include "streams/event.hpp"
#include "sync/signal_page.hpp"

namespace gpushm::streams {

/// The growing values that this process stores in one word of its own, on several streams and by
/// its CPU: each is stored after the one before, so that the word never goes back. Streams wait for
/// each other by events, not for the word: such waits are scarce (docs/adr/0032, "Waiting streams
/// are scarce").
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class ordered_stores {
 public:
  /// `word`: of a page that is mapped as long as this exists; this object alone stores values there
  /// from now on. `value`: the one that it has.
  explicit ordered_stores(const sync::timeline_writer& word, std::uint64_t value = 0) noexcept
      : word_(word), last_value_(value) {}
  ordered_stores(const ordered_stores&) = delete;
  ordered_stores& operator=(const ordered_stores&) = delete;
  /// Does not wait for streams.
  ~ordered_stores();

  /// Stores `value` after every store before, and when `points` are reached: on the stream `on`, or
  /// by the CPU; there now if that is possible, otherwise behind them, on a stream of this object.
  /// Does not wait. `address`: returns the address of the word for a stream. Throws driver_error:
  /// then nothing is stored, and the next store may have the same value. Precondition: `value` is
  /// larger than the last one; the stream is not captured.
  void store(std::optional<cuda::CUstream> on,
             std::uint64_t value,
             std::span<const stream_point> points,
             const std::function<cuda::CUdeviceptr(cuda::CUstream)>& address,
             std::string_view operation,
             std::string_view object);

  /// The last value that was stored, or enqueued.
  [[nodiscard]] std::uint64_t last_value() const noexcept { return last_value_; }
  /// Whether a stream has still to store a value.
  [[nodiscard]] bool is_pending() const noexcept;
  /// Waits until no stream has to store a value any more. Returns false if one has at `deadline`.
  [[nodiscard]] bool wait(std::chrono::steady_clock::time_point deadline) const noexcept;

 private:
  struct enqueued {
    std::uint64_t stream = 0;
    /// Missing if it could not be recorded.
    std::optional<stream_point> done;
  };

  void enqueue(cuda::CUstream stream,
               cuda::CUdeviceptr address,
               std::uint64_t value,
               std::span<const stream_point> points,
               std::string_view operation,
               std::string_view object);
  [[nodiscard]] cuda::CUstream own_stream(cuda::CUcontext context,
                                          std::string_view operation,
                                          std::string_view object);
  void end_own_stream() noexcept;

  sync::timeline_writer word_;
  std::uint64_t last_value_;
  std::optional<enqueued> last_;  ///< the last store, if it was enqueued
  /// Made when the CPU first stores a value behind a stream: one for each word, because what waits
  /// on it must not delay another word.
  cuda::CUstream own_stream_ = nullptr;
  cuda::CUcontext own_context_ = nullptr;
  std::uint64_t own_life_ = 0;
};

}  // namespace gpushm::streams
