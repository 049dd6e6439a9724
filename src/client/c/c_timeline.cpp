// SPDX-License-Identifier: Apache-2.0
// The functions of timeline.h.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/process/deadline.hpp"
#include "base/report/c_interface.hpp"
#include "client/c/c_handles.hpp"
#include "client/timeline/graph_operations.hpp"
#include "client/timeline/timeline_impl.hpp"
#include "gpu/streams/waiting_streams.hpp"
#include "gpushm/timeline.h"
#include "sync/word.hpp"

using gpushm::base::c_call;
using gpushm::base::c_text;
using gpushm::base::out;
using gpushm::base::result_out;
using gpushm::base::text_in;
using gpushm::base::throw_invalid;
using gpushm::base::timeout_in;
using gpushm::client_detail::filled_poller;
using gpushm::client_detail::filled_timeline;
using gpushm::client_detail::timeline_poller;
using gpushm::client_detail::token_of;
using gpushm::client_detail::usable_timelines;
using gpushm::client_detail::watched_timeline;
using gpushm::cuda::CUstream;
using std::chrono::milliseconds;

static_assert(GPUSHM_MAX_TIMELINE_VALUE == gpushm::sync::max_value);
static_assert(GPUSHM_MAX_STREAM_OPERATIONS == gpushm::streams::max_operations);

namespace {

CUstream stream_in(void* stream) {
  return static_cast<CUstream>(stream);
}

/// An array of operations of the caller's version, which may have fewer or more members.
class given_operations {
 public:
  /// Throws `errc::invalid_argument`.
  given_operations(const gpushm_stream_operation* operations,
                   size_t operation_size,
                   size_t count,
                   std::string_view name) {
    check(operations, operation_size, count, name);
    if (operation_size == sizeof(gpushm_stream_operation)) {
      known_ = {operations, count};
    } else {
      copy(reinterpret_cast<const unsigned char*>(operations), operation_size, count, name);
      known_ = copied_;
    }
    for (const gpushm_stream_operation& each : known_) {
      static_cast<void>(filled_timeline(each.timeline));
      static_cast<void>(gpushm::base::enum_in(each.kind, GPUSHM_STREAM_SET_FLAGS, name));
    }
  }
  given_operations(const given_operations&) = delete;
  given_operations& operator=(const given_operations&) = delete;
  ~given_operations() = default;

  /// Valid as long as this object and the caller's array.
  [[nodiscard]] std::span<const gpushm_stream_operation> get() const noexcept { return known_; }

 private:
  /// What the first version has.
  static constexpr std::size_t fewest_bytes = 24;

  static void check(const gpushm_stream_operation* operations,
                    size_t operation_size,
                    size_t count,
                    std::string_view name) {
    if (count > GPUSHM_MAX_STREAM_OPERATIONS) {
      throw_invalid(name,
                    std::to_string(count) + " operations are more than " +
                        std::to_string(GPUSHM_MAX_STREAM_OPERATIONS),
                    "use several calls");
    }
    if (operations == nullptr && count != 0) {
      throw_invalid(name, "the operations are NULL", "pass a pointer to them");
    }
    if (operation_size < fewest_bytes || operation_size % alignof(gpushm_stream_operation) != 0) {
      throw_invalid(name,
                    "the size of an operation is " + std::to_string(operation_size),
                    "pass sizeof(gpushm_stream_operation)");
    }
  }
  void copy(const unsigned char* source,
            std::size_t operation_size,
            std::size_t count,
            std::string_view name) {
    const std::size_t known = std::min(operation_size, sizeof(gpushm_stream_operation));
    for (std::size_t i = 0; i != count; ++i, source += operation_size) {
      if (std::any_of(
              source + known, source + operation_size, [](auto byte) { return byte != 0; })) {
        throw_invalid(name,
                      "a member of an operation is set that this version of libgpushm does not "
                      "support",
                      "install the version that the program was compiled with, or leave it 0");
      }
      std::memcpy(&copied_.emplace_back(), source, known);
    }
  }

  std::vector<gpushm_stream_operation> copied_;
  std::span<const gpushm_stream_operation> known_;
};

}  // namespace

gpushm_errc gpushm_timeline_create(gpushm_client* client,
                                   gpushm_string name,
                                   gpushm_timeline** timeline) {
  return c_call([&] {
    const auto called = text_in(name, "create");
    auto& client_timelines = usable_timelines(client, "create", called);
    gpushm_timeline*& result = out(timeline, "create");
    result = client_timelines.create(called).release();
  });
}

gpushm_errc gpushm_timeline_open(gpushm_client* client,
                                 gpushm_string name,
                                 int64_t timeout_ms,
                                 gpushm_stop* stop,
                                 gpushm_timeline** timeline) {
  return c_call([&] {
    const auto called = text_in(name, "open");
    auto& client_timelines = usable_timelines(client, "open", called);
    gpushm_timeline*& result = out(timeline, "open");
    gpushm::open_options options;
    options.timeout = timeout_in(timeout_ms, "open", milliseconds(0));
    options.stop = token_of(stop);
    result = client_timelines.open(called, options).release();
  });
}

gpushm_errc gpushm_segment_timelines_create(gpushm_client* client,
                                            const gpushm_segment* segment,
                                            size_t count,
                                            gpushm_timeline** timelines) {
  return c_call([&] {
    auto& client_timelines = usable_timelines(client, "create timelines");
    const gpushm_segment& owner = gpushm::client_detail::filled(segment);
    if (count == 0 || count > GPUSHM_MAX_SEGMENT_TIMELINES || timelines == nullptr) {
      throw_invalid("create timelines",
                    timelines == nullptr ? std::string("the results are NULL")
                                         : std::to_string(count) + " timelines of a segment",
                    "pass an array for 1 to " + std::to_string(GPUSHM_MAX_SEGMENT_TIMELINES));
    }
    auto created = client_timelines.create_for(owner, static_cast<std::uint32_t>(count));
    std::transform(
        created.begin(), created.end(), timelines, [](auto& each) { return each.release(); });
  });
}

gpushm_errc gpushm_segment_timeline_open(gpushm_client* client,
                                         const gpushm_segment* segment,
                                         uint32_t index,
                                         int64_t timeout_ms,
                                         gpushm_stop* stop,
                                         gpushm_timeline** timeline) {
  return c_call([&] {
    auto& client_timelines = usable_timelines(client, "open timeline");
    const gpushm_segment& owner = gpushm::client_detail::filled(segment);
    gpushm_timeline*& result = out(timeline, "open timeline");
    gpushm::open_options options;
    options.timeout = timeout_in(timeout_ms, "open", milliseconds(0));
    options.stop = token_of(stop);
    result = client_timelines.open_for(owner, index, options).release();
  });
}

void gpushm_timeline_close(gpushm_timeline* timeline) {
  const gpushm::base::held_log_lines lines;
  const std::unique_ptr<gpushm_timeline> ended(timeline);
}

gpushm_errc gpushm_timeline_hand_over(gpushm_timeline* timeline) {
  return c_call([&] {
    filled_timeline(timeline).hand_over();
    const std::unique_ptr<gpushm_timeline> ended(timeline);
  });
}

gpushm_errc gpushm_timeline_take_over(const gpushm_timeline* opened,
                                      int64_t timeout_ms,
                                      const gpushm_stop* stop,
                                      gpushm_timeline** timeline) {
  return c_call([&] {
    const auto& before = filled_timeline(opened);
    gpushm_timeline*& result = out(timeline, "take over");
    result = before.take_over(timeout_in(timeout_ms, "take over"), token_of(stop)).release();
  });
}

gpushm_string gpushm_timeline_name(const gpushm_timeline* timeline) {
  return timeline == nullptr ? gpushm_string{} : c_text(timeline->name());
}

bool gpushm_timeline_is_own(const gpushm_timeline* timeline) {
  return timeline != nullptr && timeline->is_own();
}

bool gpushm_timeline_is_writable(const gpushm_timeline* timeline) {
  return timeline != nullptr && timeline->is_writable();
}

gpushm_errc gpushm_timeline_value(const gpushm_timeline* timeline, uint64_t* value) {
  return c_call([&] { out(value, "value") = filled_timeline(timeline).value("value"); });
}

gpushm_errc gpushm_timeline_signal(gpushm_timeline* timeline, uint64_t value) {
  return c_call([&] { filled_timeline(timeline).signal(value); });
}

gpushm_errc gpushm_timeline_wait(const gpushm_timeline* timeline,
                                 uint64_t value,
                                 int64_t timeout_ms,
                                 const gpushm_stop* stop,
                                 bool* reached) {
  return c_call([&] {
    const auto& on = filled_timeline(timeline);
    out(reached, "wait") = on.wait(value, timeout_in(timeout_ms, "wait"), token_of(stop));
  });
}

gpushm_errc gpushm_poller_create(gpushm_poller** poller) {
  return c_call([&] {
    gpushm_poller*& result = out(poller, "create");
    auto made = std::make_unique<gpushm_poller>();
    made->impl = std::make_shared<timeline_poller>();
    result = made.release();
  });
}

void gpushm_poller_free(gpushm_poller* poller) {
  const std::unique_ptr<gpushm_poller> ended(poller);
  if (ended && ended->impl->is_of_parent()) {
    gpushm::client_detail::leak(ended->impl);
  }
}

gpushm_errc gpushm_poller_wait(
    gpushm_poller* poller, int64_t timeout_ms, uint64_t* keys, size_t capacity, size_t* count) {
  return c_call([&] {
    timeline_poller& timeline_poller = filled_poller(poller);
    size_t& result = out(count, "wait");
    if (keys == nullptr || capacity == 0) {
      throw_invalid("wait", "there is no room for keys", "pass an array of at least one key");
    }
    result = timeline_poller.wait({keys, capacity},
                                  gpushm::base::deadline_after(timeout_in(timeout_ms, "wait")));
  });
}

gpushm_errc gpushm_poller_wake(gpushm_poller* poller) {
  return c_call([&] {
    timeline_poller& by = filled_poller(poller);
    by.check_usable("wake");
    by.wake();
  });
}

gpushm_errc gpushm_poller_remove(gpushm_poller* poller, uint64_t key) {
  return c_call([&] { filled_poller(poller).remove(key); });
}

gpushm_errc gpushm_timeline_watch(const gpushm_timeline* timeline,
                                  uint64_t value,
                                  gpushm_poller* poller,
                                  uint64_t key,
                                  const gpushm_stop* stop,
                                  gpushm_progress* progress) {
  return c_call([&] {
    const auto& on = filled_timeline(timeline);
    timeline_poller& timeline_poller = filled_poller(poller);
    gpushm_progress& watched = out(progress, "wait");
    std::optional<watched_timeline> missing;
    watched = on.try_wait(value, missing) ? GPUSHM_PROGRESS_DONE : GPUSHM_PROGRESS_BLOCKS;
    if (missing) {
      timeline_poller.watch(key, std::move(*missing), token_of(stop));
      watched = GPUSHM_PROGRESS_WATCHED;
    }
  });
}

gpushm_errc gpushm_timeline_set_flags(gpushm_timeline* timeline, uint64_t flags) {
  return c_call([&] { filled_timeline(timeline).set_flags(flags); });
}

gpushm_errc gpushm_timeline_wait_flags(const gpushm_timeline* timeline,
                                       uint64_t flags,
                                       int64_t timeout_ms,
                                       const gpushm_stop* stop,
                                       bool* met) {
  return c_call([&] {
    const auto& on = filled_timeline(timeline);
    out(met, "wait") = on.wait_flags(flags, timeout_in(timeout_ms, "wait"), token_of(stop));
  });
}

gpushm_errc gpushm_timeline_prepare(gpushm_timeline* timeline, void* stream) {
  return c_call([&] { filled_timeline(timeline).prepare(stream_in(stream)); });
}

gpushm_errc gpushm_timeline_signal_on(gpushm_timeline* timeline, void* stream, uint64_t value) {
  return c_call([&] {
    static_cast<void>(filled_timeline(timeline));
    const gpushm_stream_operation one{timeline, value, GPUSHM_STREAM_SIGNAL};
    gpushm_timeline::batch(stream_in(stream), {&one, 1}, milliseconds(0), "signal");
  });
}

gpushm_errc gpushm_timeline_wait_on(gpushm_timeline* timeline,
                                    void* stream,
                                    uint64_t value,
                                    int64_t timeout_ms) {
  return c_call([&] {
    static_cast<void>(filled_timeline(timeline));
    const gpushm_stream_operation one{timeline, value, GPUSHM_STREAM_WAIT};
    gpushm_timeline::batch(stream_in(stream), {&one, 1}, timeout_in(timeout_ms, "wait"), "wait");
  });
}

gpushm_errc gpushm_timeline_check(const gpushm_timeline* timeline) {
  return c_call([&] { filled_timeline(timeline).check(); });
}

gpushm_errc gpushm_stream_batch(void* stream,
                                const gpushm_stream_operation* operations,
                                size_t operation_size,
                                size_t count,
                                int64_t timeout_ms) {
  return c_call([&] {
    const given_operations given(operations, operation_size, count, "batch");
    gpushm_timeline::batch(stream_in(stream), given.get(), timeout_in(timeout_ms, "batch"));
  });
}

gpushm_errc gpushm_graph_record(void* stream,
                                const gpushm_stream_operation* operations,
                                size_t operation_size,
                                size_t count,
                                gpushm_graph_operations** recorded) {
  return c_call([&] {
    const given_operations given(operations, operation_size, count, "record");
    const auto recordable = given.get();
    gpushm_graph_operations*& result = out(recorded, "record");
    if (recordable.empty()) {
      throw_invalid("record", "no operations", "pass at least one");
    }
    result = std::make_unique<gpushm_graph_operations>(stream_in(stream), recordable).release();
  });
}

gpushm_errc gpushm_graph_set_values(gpushm_graph_operations* recorded,
                                    void* executable,
                                    void* stream,
                                    const uint64_t* values,
                                    size_t count,
                                    int64_t timeout_ms) {
  return c_call([&] {
    const auto timeout = timeout_in(timeout_ms, "set values");
    if (recorded == nullptr || executable == nullptr || (values == nullptr && count != 0)) {
      throw_invalid("set values",
                    "the operations, the executable graph or the values are NULL",
                    "pass what gpushm_graph_record has returned, and a CUgraphExec");
    }
    recorded->set(static_cast<gpushm::cuda::CUgraphExec>(executable),
                  stream_in(stream),
                  {values, count},
                  timeout);
  });
}

void gpushm_graph_operations_free(gpushm_graph_operations* recorded) {
  const std::unique_ptr<gpushm_graph_operations> ended(recorded);
}

gpushm_errc gpushm_waiting_streams_get(gpushm_waiting_streams* counts) {
  return c_call([&] {
    auto& counted = gpushm::streams::waiting_streams::of_process();
    gpushm_waiting_streams result{};
    result.waiting = static_cast<std::uint32_t>(counted.count());
    result.limit = counted.limit();
    result.connections = counted.connections();
    result_out(result, counts, "waiting_streams");
  });
}
