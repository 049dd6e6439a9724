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

  /// Creates and publishes a timeline with the value 0. Blocks for two round trips to the broker,
  /// for two more if it is the first one of the client. Throws `error`: already_exists, and as
  /// `client::create`.
  [[nodiscard]] static timeline create(const client& by, std::string_view name) {
    gpushm_timeline* created = nullptr;
    glue::check(gpushm_timeline_create(by.handle(), glue::text(name), &created));
    return timeline(created);
  }
  /// Opens a timeline; waits until its name is published, at most `timeout`. Throws `error`:
  /// no_such_segment, peer_died, invalid_argument (it is a segment), and as `client::open`.
  [[nodiscard]] static timeline open(const client& by,
                                     std::string_view name,
                                     std::chrono::milliseconds timeout = {},
                                     const std::stop_token& stop = {}) {
    const glue::stop_bridge bridge(stop);
    gpushm_timeline* opened = nullptr;
    glue::check(gpushm_timeline_open(
        by.handle(), glue::text(name), timeout.count(), bridge.handle(), &opened));
    return timeline(opened);
  }

  /// Creates a timeline that needs no broker, with the value 0: other processes import its ticket.
  /// It is for processes of one PID namespace (one container) and one user, and advisory: each of
  /// them could write it, because each that has imported it ends it when this process has died. It
  /// has no name, and cannot be handed over. 512 timelines use one descriptor, as long as one of
  /// them exists. Throws not_exportable (nothing tells others when this process can no longer
  /// write: MPS, or Linux before 5.3), too_many_descriptors, out_of_memory.
  [[nodiscard]] static timeline create_local() {
    gpushm_timeline* created = nullptr;
    glue::check(gpushm_timeline_create_local(&created));
    return timeline(created);
  }
  /// Opens the timeline that a ticket describes, to wait for it: through its broker if it names
  /// one, otherwise through /proc. `directory`: of a socket that the ticket names without a slash;
  /// empty: the working directory. In the process that created it, too. Throws invalid_ticket,
  /// unsupported_version, peer_died, gone_or_replaced (it was closed), peer_unreachable (without a
  /// broker: its process is in another PID namespace), permission_denied (it has another user, or
  /// is not dumpable), and as `open`.
  [[nodiscard]] static timeline from_ticket(std::span<const std::byte> ticket,
                                            std::string_view directory = {}) {
    gpushm_timeline* imported = nullptr;
    glue::check(
        gpushm_import_timeline(ticket.data(), ticket.size(), glue::text(directory), &imported));
    return timeline(imported);
  }
  /// A ticket of this timeline: of one without a broker also in a process that has imported it; of
  /// one with a broker by its name and generation, with `socket_path` as in `export_segment`. Does
  /// not block. Throws invalid_argument: it belongs to a segment (export that).
  [[nodiscard]] std::vector<std::byte> ticket(std::string_view socket_path = {}) const {
    auto described = glue::sized<gpushm_ticket>();
    glue::check(gpushm_export_timeline(handle_.get(), glue::text(socket_path), &described));
    return glue::bytes_of(described);
  }

  /// Gives the timeline to a process that calls `take_over`: waits on CPUs go on there;
  /// waits of streams are released, and `check` says so. Waits, at most a second, until streams
  /// have stored the values that they were given. Then this object is empty. Throws timed_out (a
  /// stream has not stored its value), invalid_argument (not this process's timeline, or one of a
  /// segment).
  void hand_over() {
    glue::check(gpushm_timeline_hand_over(handle_.get()));
    static_cast<void>(handle_.release());
  }
  /// Waits until the signaler of this timeline, which this process has opened, hands it over or has
  /// died, at most `timeout`, and creates it again, with its last value: this process signals the
  /// result. Throws timed_out (its signaler lives), cancelled, already_exists (another process has
  /// taken it over), and as `create`.
  [[nodiscard]] timeline take_over(std::chrono::milliseconds timeout,
                                   const std::stop_token& stop = {}) const {
    const glue::stop_bridge bridge(stop);
    gpushm_timeline* taken = nullptr;
    glue::check(gpushm_timeline_take_over(handle_.get(), timeout.count(), bridge.handle(), &taken));
    return timeline(taken);
  }
  /// Creates 1 to 64 timelines that belong to a segment that this process has created: they need no
  /// names of their own. Once for each segment, as long as one of them exists. Throws as `create`,
  /// and invalid_argument: another process has created the segment.
  [[nodiscard]] static std::vector<timeline> create_for(const client& by,
                                                        const segment& of,
                                                        std::size_t count) {
    std::vector<gpushm_timeline*> created(count);
    glue::check(gpushm_segment_timelines_create(by.handle(), of.handle(), count, created.data()));
    return {created.begin(), created.end()};
  }
  /// Opens the timeline `index` of a segment; waits until the segment's creator has created them,
  /// at most `timeout`. Throws as `open`, and invalid_argument: it has fewer.
  [[nodiscard]] static timeline open_of(const client& by,
                                        const segment& of,
                                        std::uint32_t index,
                                        std::chrono::milliseconds timeout = {},
                                        const std::stop_token& stop = {}) {
    const glue::stop_bridge bridge(stop);
    gpushm_timeline* opened = nullptr;
    glue::check(gpushm_segment_timeline_open(
        by.handle(), of.handle(), index, timeout.count(), bridge.handle(), &opened));
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
  /// Whether the kernel lets this process write the word: its own; another process's only if it has
  /// no broker, or if this process is root with CAP_DAC_OVERRIDE, or has the broker's uid.
  [[nodiscard]] bool is_writable() const noexcept {
    return gpushm_timeline_is_writable(handle_.get());
  }

  // ---- CPU ----

  /// The last value that was signaled, also after the timeline has ended. No system call.
  [[nodiscard]] std::uint64_t value() const {
    std::uint64_t result = 0;
    glue::check(gpushm_timeline_value(handle_.get(), &result));
    return result;
  }
  /// Signals a larger value and wakes waiters: one system call. What this thread has written before
  /// is visible to those who see it, on GPUs, too. Throws `error`: value_out_of_range, timed_out (a
  /// graph has still to signal), invalid_argument (not larger, or another process's timeline). If a
  /// stream has still to signal, the value follows it.
  void signal(std::uint64_t value) { glue::check(gpushm_timeline_signal(handle_.get(), value)); }
  /// Blocks until `value` is reached: returns true; or until `timeout` has passed or `stop` is
  /// requested (noticed within 100 ms): returns false. Throws `error`: peer_died (the timeline has
  /// ended before), value_out_of_range.
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

  /// Replaces the flags, bits 0 to 31, at least one, and wakes waiters. For CUDA graphs, whose
  /// operations are the same at each launch. A timeline has values or flags, not both. Throws as
  /// `signal`.
  void set_flags(std::uint64_t flags) {
    glue::check(gpushm_timeline_set_flags(handle_.get(), flags));
  }
  /// Blocks until the timeline has any of these flags, as `wait` does for a value. Flags that were
  /// replaced meanwhile may not be seen.
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

  /// Registers the memory with CUDA, as the first use by a stream would do: 100 µs. Call it before
  /// a stream is captured: memory cannot be registered during a capture. Throws `error`:
  /// driver_unavailable, driver_error.
  void prepare(void* stream = nullptr) {
    glue::check(gpushm_timeline_prepare(handle_.get(), stream));
  }
  /// Enqueues a signal: what the stream did before is visible to those who see the value, on other
  /// GPUs and on CPUs, too. Does not wait for the stream. Throws as `signal` and `prepare`.
  void signal(void* stream, std::uint64_t value) {
    glue::check(gpushm_timeline_signal_on(handle_.get(), stream, value));
  }
  /// Enqueues a wait: what is enqueued on the stream later begins when `value` is reached, or when
  /// the timeline has ended; after the stream was synchronized, `check` tells which. Streams that
  /// wait are scarce (`waiting_streams`): if this one would be one too many, blocks until the
  /// value is reached, at most `timeout`. Throws `error`: too_many_waits (nothing was enqueued),
  /// and as `prepare`.
  void wait(void* stream,
            std::uint64_t value,
            std::chrono::milliseconds timeout = default_timeout) {
    glue::check(gpushm_timeline_wait_on(handle_.get(), stream, value, timeout.count()));
  }
  /// Throws `errc::peer_died` if the timeline had ended before it reached a value for which a
  /// stream of this process was to wait: what the stream has done behind that wait must not be
  /// trusted. After waits for flags: if the timeline has ended. Throws invalid_argument if the
  /// value is not reached yet: synchronize the stream first.
  void check() const { glue::check(gpushm_timeline_check(handle_.get())); }

  /// Ends this object's use of the timeline, as its destructor does. In the process that created
  /// it: ends the timeline, which releases all waits; before, waits until streams have stored the
  /// values that they were given, at most a second. Otherwise no stream of this process may still
  /// wait for it.
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

  /// Sets the values of the next launch of `executable`, a CUgraphExec or cudaGraphExec_t that was
  /// made of the graph that was recorded, which must still exist; launches that are enqueued
  /// already keep theirs. Launch it on `stream` after this. `values`: one for each operation, in
  /// their order. Otherwise as `stream_batch::enqueue`.
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
  /// `on` must exist until `enqueue`.
  stream_batch& wait(timeline& on, std::uint64_t value) {
    operations_.push_back({on.handle(), value, GPUSHM_STREAM_WAIT});
    return *this;
  }
  stream_batch& signal(timeline& on, std::uint64_t value) {
    operations_.push_back({on.handle(), value, GPUSHM_STREAM_SIGNAL});
    return *this;
  }
  stream_batch& wait_flags(timeline& on, std::uint64_t flags) {
    operations_.push_back({on.handle(), flags, GPUSHM_STREAM_WAIT_FLAGS});
    return *this;
  }
  stream_batch& set_flags(timeline& on, std::uint64_t flags) {
    operations_.push_back({on.handle(), flags, GPUSHM_STREAM_SET_FLAGS});
    return *this;
  }
  /// Enqueues all of them, or, if it throws, nothing; they stay in this object. Throws as the
  /// functions of `timeline`.
  void enqueue(void* stream, std::chrono::milliseconds timeout = default_timeout) const {
    glue::check(gpushm_stream_batch(stream,
                                    operations_.data(),
                                    sizeof(gpushm_stream_operation),
                                    operations_.size(),
                                    timeout.count()));
  }
  /// Records them in the graph into which `stream` is captured: the values of launches before the
  /// first `graph_operations::set`, which fails once a timeline was closed. Prepare them first.
  /// `enqueue` on such a stream records operations that are the same at each launch. Throws
  /// `error`: invalid_argument (the stream is not captured, or a timeline is not prepared),
  /// driver_error.
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

/// Streams of this process that wait for a timeline. As many waiting streams as CUDA has
/// connections stop all other streams of the process, also those that would signal what is waited
/// for.
struct waiting_streams {
  std::uint32_t waiting = 0;      ///< streams with a wait that has not been seen met
  std::uint32_t limit = 0;        ///< half of `connections`, and not the last one
  std::uint32_t connections = 0;  ///< `$CUDA_DEVICE_MAX_CONNECTIONS`, 8 unless set, at most 32
  [[nodiscard]] static waiting_streams now() {
    auto got = glue::sized<gpushm_waiting_streams>();
    glue::check(gpushm_waiting_streams_get(&got));
    return {got.waiting, got.limit, got.connections};
  }
};

}  // namespace v1
}  // namespace gpushm
