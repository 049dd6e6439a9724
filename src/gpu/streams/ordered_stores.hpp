// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "gpu/driver/cuda_abi.hpp"
#include "gpu/streams/event.hpp"
#include "sync/timeline_page.hpp"

namespace gpushm::streams {

/// What is stored in a word: a value of a timeline, or flags, which need not grow.
struct stored_word {
  // NOLINTNEXTLINE(google-explicit-constructor): a value is the ordinary case
  constexpr stored_word(std::uint64_t value) noexcept : word(value) {}
  [[nodiscard]] static constexpr stored_word flags(std::uint64_t bits) noexcept {
    stored_word result(bits);
    result.is_flags = true;
    return result;
  }
  std::uint64_t word;
  bool is_flags = false;
};

/// What this process stores in one word of its own, on several streams and by its CPU: each is
/// stored after the one before, so that values never go back. Streams wait for each other by
/// events, not for the word: such waits are scarce (docs/adr/0032, "Waiting streams are scarce").
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class ordered_stores {
 public:
  /// `word`: of a page that is mapped as long as this exists; this object alone stores there from
  /// now on, with what `note` says. `value`: the one that it has.
  explicit ordered_stores(const sync::timeline_writer& word, std::uint64_t value = 0) noexcept
      : word_(word), last_stored_(value) {}
  ordered_stores(const ordered_stores&) = delete;
  ordered_stores& operator=(const ordered_stores&) = delete;
  /// Does not wait for streams.
  ~ordered_stores();

  /// Stores `word` after every store before, and when `points` are reached: on
  /// `caller_stream`, or by the CPU; there now if that is possible, otherwise behind them, on a
  /// stream of this object. Does not wait. `address`: returns the address of the word for a stream.
  /// Returns false, and stores nothing, if the CPU finds that the word has ended. Throws
  /// driver_error, invalid_argument (the store before cannot be followed): then nothing is stored,
  /// and the next store may have the same value. Precondition: a value is larger than the last one;
  /// the stream is not captured.
  bool store(std::optional<cuda::CUstream> caller_stream,
             stored_word word,
             std::span<const stream_point> points,
             const std::function<cuda::CUdeviceptr(cuda::CUstream)>& address,
             std::string_view operation,
             std::string_view object);

  // ---- stores that the caller enqueues, with those of other words ----

  /// Before: what is enqueued on `stream`, whose `stream_id` is `id`, comes after every store
  /// before. Does not wait. Throws as `store`.
  void follow(cuda::CUstream stream,
              std::uint64_t id,
              std::string_view operation,
              std::string_view object) const;
  /// Announces to readers that streams also store.
  void use_streams() noexcept { word_.use_streams(); }
  /// After: `done` is reached when it was stored; missing: not known, as of a graph.
  void note(std::uint64_t id, stored_word word, std::optional<stream_point> done) noexcept {
    last_stored_ = word;
    last_ = enqueued{id, std::move(done)};
  }

  /// The last value that was stored, or enqueued.
  [[nodiscard]] std::uint64_t last_value() const noexcept { return last_stored_.word; }
  /// Whether a stream may have something to store. Of values, this is known without the driver.
  [[nodiscard]] bool is_pending() const noexcept;
  /// Whether a store of another stream, or of the CPU, can come after those so far.
  [[nodiscard]] bool can_be_followed() const noexcept {
    return !is_pending() || last_->done.has_value() || last_stored_.is_flags;
  }
  /// Waits until no stream has pending stores. Returns false if one may have at `deadline`.
  [[nodiscard]] bool wait(std::chrono::steady_clock::time_point deadline) noexcept;

 private:
  struct enqueued {
    std::uint64_t stream = 0;
    /// Missing if it could not be recorded, or of a graph.
    std::optional<stream_point> done;
  };

  void enqueue(cuda::CUstream stream,
               cuda::CUdeviceptr address,
               stored_word word,
               std::span<const stream_point> points,
               std::string_view operation,
               std::string_view object);
  void check_followed(std::string_view operation, std::string_view object) const;
  [[nodiscard]] const stream_point* last_open(std::string_view operation,
                                              std::string_view object) const;
  [[nodiscard]] cuda::CUstream own_stream(cuda::CUcontext context,
                                          std::string_view operation,
                                          std::string_view object);
  void end_own_stream() noexcept;

  sync::timeline_writer word_;
  stored_word last_stored_;
  std::optional<enqueued> last_;  ///< the last store, if it was enqueued
  /// Made when the CPU first stores a value behind a stream: one for each word, because what waits
  /// on it must not delay another word.
  cuda::CUstream own_stream_ = nullptr;
  cuda::CUcontext own_context_ = nullptr;
  std::uint64_t own_life_ = 0;
};

}  // namespace gpushm::streams
