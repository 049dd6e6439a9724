// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "gpushm/client.hpp"
#include "gpushm/error.hpp"
#include "gpushm/exchange.hpp"
#include "gpushm/timeline.h"

namespace gpushm {
inline namespace v1 {

/// Values of timelines are 0 to this.
inline constexpr std::uint64_t max_timeline_value = GPUSHM_MAX_TIMELINE_VALUE;

/// A 64-bit counter that the process that created it signals, and that any process of the domain
/// waits for, on CPUs and on CUDA streams (docs/timelines.md). Its value only grows. The
/// kernel refuses writes by other processes; docs/threat-model.md has the exceptions.
///
/// `stream` is a CUstream or a cudaStream_t; null: the default stream of the current context.
///
/// Move-only; a moved-from or default-constructed timeline is empty: `operator bool` is false,
/// everything else throws `errc::invalid_argument`. In a forked child every call throws
/// `errc::forked`.
///
/// Thread-safety: distinct objects: safe; shared objects: safe, but for moves.
class timeline {
 public:
  timeline() noexcept = default;
  /// Takes ownership of `handle`; null: an empty timeline.
  explicit timeline(gpushm_timeline* handle) noexcept : handle_(handle) {}

  /// Creates and publishes a timeline with the value 0. As `gpushm_timeline_create`.
  [[nodiscard]] static timeline create(const client& client, std::string_view name) {
    gpushm_timeline* created = nullptr;
    glue::check(gpushm_timeline_create(client.handle(), glue::text(name), &created));
    return timeline(created);
  }
  /// Opens a timeline; waits until its name is published, at most `timeout`. As
  /// `gpushm_timeline_open`.
  [[nodiscard]] static timeline open(const client& client,
                                     std::string_view name,
                                     std::chrono::milliseconds timeout = {},
                                     const std::stop_token& stop = {}) {
    const glue::stop_bridge bridge(stop);
    gpushm_timeline* opened = nullptr;
    glue::check(gpushm_timeline_open(
        client.handle(), glue::text(name), timeout.count(), bridge.handle(), &opened));
    return timeline(opened);
  }

  /// Creates a timeline that needs no broker, with the value 0: other processes import its ticket.
  /// As `gpushm_timeline_create_local`.
  [[nodiscard]] static timeline create_local() {
    gpushm_timeline* created = nullptr;
    glue::check(gpushm_timeline_create_local(&created));
    return timeline(created);
  }
  /// Opens the timeline that a ticket describes. As `gpushm_import_timeline`.
  [[nodiscard]] static timeline from_ticket(std::span<const std::byte> ticket,
                                            std::string_view directory = {}) {
    gpushm_timeline* imported = nullptr;
    glue::check(
        gpushm_import_timeline(ticket.data(), ticket.size(), glue::text(directory), &imported));
    return timeline(imported);
  }
  /// Returns a ticket of this timeline. As `gpushm_export_timeline`.
  [[nodiscard]] std::vector<std::byte> ticket(std::string_view socket_path = {}) const {
    auto described = glue::sized<gpushm_ticket>();
    glue::check(gpushm_export_timeline(handle_.get(), glue::text(socket_path), &described));
    return glue::bytes_of(described);
  }

  /// Gives the timeline to a process that calls `take_over`; then this object is empty. As
  /// `gpushm_timeline_hand_over`.
  void hand_over() {
    glue::check(gpushm_timeline_hand_over(handle_.get()));
    static_cast<void>(handle_.release());
  }
  /// Continues this timeline, which another process has signaled, after it has handed it over or
  /// has died: this process signals the result. As `gpushm_timeline_take_over`.
  [[nodiscard]] timeline take_over(std::chrono::milliseconds timeout,
                                   const std::stop_token& stop = {}) const {
    const glue::stop_bridge bridge(stop);
    gpushm_timeline* taken = nullptr;
    glue::check(gpushm_timeline_take_over(handle_.get(), timeout.count(), bridge.handle(), &taken));
    return timeline(taken);
  }
  /// Creates `count` timelines, 1 to 64, that belong to a segment of this process. As
  /// `gpushm_segment_timelines_create`.
  [[nodiscard]] static std::vector<timeline> create_for(const client& client,
                                                        const segment& segment,
                                                        std::size_t count) {
    std::vector<gpushm_timeline*> created(count);
    glue::check(
        gpushm_segment_timelines_create(client.handle(), segment.handle(), count, created.data()));
    return {created.begin(), created.end()};
  }
  /// Opens the timeline `index` of a segment. As `gpushm_segment_timeline_open`.
  [[nodiscard]] static timeline open_of(const client& client,
                                        const segment& segment,
                                        std::uint32_t index,
                                        std::chrono::milliseconds timeout = {},
                                        const std::stop_token& stop = {}) {
    const glue::stop_bridge bridge(stop);
    gpushm_timeline* opened = nullptr;
    glue::check(gpushm_segment_timeline_open(
        client.handle(), segment.handle(), index, timeout.count(), bridge.handle(), &opened));
    return timeline(opened);
  }

  /// True unless empty.
  explicit operator bool() const noexcept { return handle_ != nullptr; }
  /// Empty without a broker.
  [[nodiscard]] std::string name() const {
    return std::string(glue::view(gpushm_timeline_name(handle_.get())));
  }
  /// Whether this process has created it, and so signals it.
  [[nodiscard]] bool is_own() const noexcept { return gpushm_timeline_is_own(handle_.get()); }
  /// Whether the kernel lets this process write the value. As `gpushm_timeline_is_writable`.
  [[nodiscard]] bool is_writable() const noexcept {
    return gpushm_timeline_is_writable(handle_.get());
  }

  // ---- CPU ----

  /// The last value that was signaled. As `gpushm_timeline_value`.
  [[nodiscard]] std::uint64_t value() const {
    std::uint64_t result = 0;
    glue::check(gpushm_timeline_value(handle_.get(), &result));
    return result;
  }
  /// Signals a larger value and wakes waiters. As `gpushm_timeline_signal`.
  void signal(std::uint64_t value) { glue::check(gpushm_timeline_signal(handle_.get(), value)); }
  /// Blocks until `value` is reached, and returns true; returns false after `timeout`, or when
  /// `stop` was requested. As `gpushm_timeline_wait`.
  [[nodiscard]] bool wait(std::uint64_t value,
                          std::chrono::milliseconds timeout,
                          const std::stop_token& stop = {}) const {
    const glue::stop_bridge bridge(stop);
    bool reached = false;
    glue::check(
        gpushm_timeline_wait(handle_.get(), value, timeout.count(), bridge.handle(), &reached));
    return reached;
  }
  /// As `wait`, without blocking and without a system call.
  [[nodiscard]] bool try_wait(std::uint64_t value) const {
    bool reached = false;
    glue::check(gpushm_timeline_wait(handle_.get(), value, 0, nullptr, &reached));
    return reached;
  }

  // ---- flags, instead of values ----

  /// Replaces the flags, and wakes waiters. As `gpushm_timeline_set_flags`.
  void set_flags(std::uint64_t flags) {
    glue::check(gpushm_timeline_set_flags(handle_.get(), flags));
  }
  /// Blocks until the timeline has any of these flags, as `wait` does for a value. As
  /// `gpushm_timeline_wait_flags`.
  [[nodiscard]] bool wait_flags(std::uint64_t flags,
                                std::chrono::milliseconds timeout,
                                const std::stop_token& stop = {}) const {
    const glue::stop_bridge bridge(stop);
    bool met = false;
    glue::check(
        gpushm_timeline_wait_flags(handle_.get(), flags, timeout.count(), bridge.handle(), &met));
    return met;
  }

  // ---- CUDA streams ----

  /// Registers the memory with CUDA, before a stream is captured. As `gpushm_timeline_prepare`.
  void prepare(void* stream = nullptr) {
    glue::check(gpushm_timeline_prepare(handle_.get(), stream));
  }
  /// Enqueues a signal. As `gpushm_timeline_signal_on`.
  void signal(void* stream, std::uint64_t value) {
    glue::check(gpushm_timeline_signal_on(handle_.get(), stream, value));
  }
  /// Enqueues a wait; after the stream was synchronized, `check` tells how it ended. As
  /// `gpushm_timeline_wait_on`.
  void wait(void* stream,
            std::uint64_t value,
            std::chrono::milliseconds timeout = default_timeout) {
    glue::check(gpushm_timeline_wait_on(handle_.get(), stream, value, timeout.count()));
  }
  /// Throws unless all values for which streams of this process were to wait have been reached. As
  /// `gpushm_timeline_check`.
  void check() const { glue::check(gpushm_timeline_check(handle_.get())); }

  /// Ends this object's use of the timeline, as its destructor does, and in the process that
  /// created it the timeline. As `gpushm_timeline_close`.
  void reset() noexcept { handle_.reset(); }

  /// Owned by this object; null for an empty one.
  [[nodiscard]] gpushm_timeline* handle() const noexcept { return handle_.get(); }

 private:
  std::unique_ptr<gpushm_timeline, glue::deleter<&gpushm_timeline_close>> handle_;
};

/// Operations in a CUDA graph whose values are set before each launch. Move-only; a moved-from or
/// default-constructed object is empty: `set` throws `errc::invalid_argument`.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class graph_operations {
 public:
  graph_operations() noexcept = default;
  /// Takes over a handle.
  explicit graph_operations(gpushm_graph_operations* recorded) noexcept : handle_(recorded) {}

  /// Sets the values of the next launch of `executable`: one for each operation, in their order. As
  /// `gpushm_graph_set_values`.
  void set(void* executable,
           void* stream,
           std::span<const std::uint64_t> values,
           std::chrono::milliseconds timeout = default_timeout) {
    glue::check(gpushm_graph_set_values(
        handle_.get(), executable, stream, values.data(), values.size(), timeout.count()));
  }

 private:
  std::unique_ptr<gpushm_graph_operations, glue::deleter<&gpushm_graph_operations_free>> handle_;
};

/// Signals and waits that a stream gets by one call of the driver, in the order in which they are
/// added: at most 64.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class stream_batch {
 public:
  /// `timeline` must exist until `enqueue`.
  stream_batch& wait(timeline& timeline, std::uint64_t value) {
    operations_.push_back({timeline.handle(), value, GPUSHM_STREAM_WAIT});
    return *this;
  }
  stream_batch& signal(timeline& timeline, std::uint64_t value) {
    operations_.push_back({timeline.handle(), value, GPUSHM_STREAM_SIGNAL});
    return *this;
  }
  stream_batch& wait_flags(timeline& timeline, std::uint64_t flags) {
    operations_.push_back({timeline.handle(), flags, GPUSHM_STREAM_WAIT_FLAGS});
    return *this;
  }
  stream_batch& set_flags(timeline& timeline, std::uint64_t flags) {
    operations_.push_back({timeline.handle(), flags, GPUSHM_STREAM_SET_FLAGS});
    return *this;
  }
  /// Enqueues all of them, or, if it throws, nothing; they stay in this object. As
  /// `gpushm_stream_batch`.
  void enqueue(void* stream, std::chrono::milliseconds timeout = default_timeout) const {
    glue::check(gpushm_stream_batch(stream,
                                    operations_.data(),
                                    sizeof(gpushm_stream_operation),
                                    operations_.size(),
                                    timeout.count()));
  }
  /// Records them in the graph into which `stream` is captured. As `gpushm_graph_record`; `enqueue`
  /// on such a stream records operations that are the same at each launch.
  [[nodiscard]] graph_operations record(void* stream) const {
    gpushm_graph_operations* recorded = nullptr;
    glue::check(gpushm_graph_record(stream,
                                    operations_.data(),
                                    sizeof(gpushm_stream_operation),
                                    operations_.size(),
                                    &recorded));
    return graph_operations(recorded);
  }
  void clear() noexcept { operations_.clear(); }

 private:
  std::vector<gpushm_stream_operation> operations_;
};

/// Streams of this process that wait for a timeline. As `gpushm_waiting_streams`.
struct waiting_streams {
  std::uint32_t waiting = 0;
  std::uint32_t limit = 0;
  std::uint32_t connections = 0;
  [[nodiscard]] static waiting_streams now() {
    auto got = glue::sized<gpushm_waiting_streams>();
    glue::check(gpushm_waiting_streams_get(&got));
    return {got.waiting, got.limit, got.connections};
  }
};

}  // namespace v1
}  // namespace gpushm
