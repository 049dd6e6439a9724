// SPDX-License-Identifier: Apache-2.0
// Several operations of timelines at once: on a stream, or in a graph.
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/graph_operations.hpp"
#include "client/stream_turn.hpp"
#include "client/timeline_impl.hpp"

namespace {

using gpushm::errc;
using gpushm::error;
using gpushm::cuda::CUstream;
using gpushm::streams::operation;
using std::chrono::milliseconds;
namespace streams = gpushm::streams;
namespace sync = gpushm::sync;

bool stores(const gpushm_stream_operation& what) {
  return what.kind == GPUSHM_STREAM_SIGNAL || what.kind == GPUSHM_STREAM_SET_FLAGS;
}
bool uses_flags(const gpushm_stream_operation& what) {
  return what.kind == GPUSHM_STREAM_WAIT_FLAGS || what.kind == GPUSHM_STREAM_SET_FLAGS;
}
operation::kind kind_of(const gpushm_stream_operation& what) {
  return stores(what)                            ? operation::kind::store
         : what.kind == GPUSHM_STREAM_WAIT_FLAGS ? operation::kind::wait_any_bit
                                                 : operation::kind::wait;
}

}  // namespace

/// What the driver is given. Throws if one of them is not possible.
std::vector<operation> gpushm_timeline::operations_of(CUstream stream,
                                                      std::span<const gpushm_stream_operation> what,
                                                      std::string_view name,
                                                      milliseconds timeout) {
  std::vector<operation> result;
  result.reserve(what.size());
  for (const gpushm_stream_operation& each : what) {
    const gpushm_timeline& on = *each.timeline;
    stores(each) ? on.check_own(name) : on.check_usable(name);
    uses_flags(each) ? on.check_flags(name, each.value) : on.check_value(name, each.value);
    if (!stores(each)) {
      on.follow_if_moved(timeout);
    }
    result.push_back({kind_of(each), on.address_for(stream, name), each.value});
  }
  return result;
}

/// Calls `enqueue` if the values grow, with the timelines that are signaled locked, and notes them.
/// `what` are the operations that a stream will execute in this order.
void gpushm_timeline::with_larger_values(std::span<const gpushm_stream_operation> what,
                                         std::string_view name,
                                         const std::function<void()>& enqueue) {
  std::vector<gpushm_timeline*> written;
  for (const gpushm_stream_operation& each : what) {
    if (stores(each)) {
      written.push_back(each.timeline);
    }
  }
  // In one order, for batches of other threads.
  std::sort(written.begin(), written.end());
  written.erase(std::unique(written.begin(), written.end()), written.end());
  std::vector<std::unique_lock<std::mutex>> locks;
  locks.reserve(written.size());
  for (gpushm_timeline* each : written) {
    locks.emplace_back(each->mutex_);
  }
  for (std::size_t i = 0; i != what.size(); ++i) {
    if (!stores(what[i])) {
      continue;
    }
    gpushm_timeline& on = *what[i].timeline;
    const auto earlier = std::find_if(
        what.rend() - static_cast<std::ptrdiff_t>(i), what.rend(), [&](const auto& each) {
          return stores(each) && each.timeline == &on;
        });
    const bool had_flags =
        earlier == what.rend() ? on.has_flags_ : earlier->kind == GPUSHM_STREAM_SET_FLAGS;
    const std::uint64_t least = earlier == what.rend() ? on.signaled_ : earlier->value;
    on.check_kind(name, uses_flags(what[i]), had_flags, least);
    if (!uses_flags(what[i]) && what[i].value <= least) {
      on.throw_not_larger(name, what[i].value);
    }
  }
  for (gpushm_timeline* each : written) {
    each->writer().use_streams();
  }
  enqueue();
  for (const gpushm_stream_operation& each : what) {
    switch (each.kind) {
      case GPUSHM_STREAM_SIGNAL:
        each.timeline->signaled_ = each.timeline->on_streams_ = each.value;
        break;
      case GPUSHM_STREAM_SET_FLAGS:
        each.timeline->has_flags_ = true;
        break;
      case GPUSHM_STREAM_WAIT:
        each.timeline->note_wait(each.value);
        break;
      case GPUSHM_STREAM_WAIT_FLAGS:
        each.timeline->streams_wait_for_flags_.store(true, std::memory_order_relaxed);
        break;
    }
  }
}

void gpushm_timeline::count_waits(CUstream stream,
                                  std::span<const gpushm_stream_operation> what,
                                  milliseconds timeout) {
  for (const gpushm_stream_operation& each : what) {
    if (each.kind == GPUSHM_STREAM_WAIT) {
      each.timeline->count_wait(stream, each.value, timeout);
    } else if (each.kind == GPUSHM_STREAM_WAIT_FLAGS) {
      each.timeline->count_wait(stream, sync::condition::any_of(each.value), timeout);
    }
  }
}

void gpushm_timeline::batch(CUstream stream,
                            std::span<const gpushm_stream_operation> what,
                            milliseconds timeout) {
  const auto operations = operations_of(stream, what, "batch", timeout);
  if (streams::is_capturing(stream)) {
    // The same values at each launch.
    streams::enqueue(stream, operations, {});
    note_recorded(what);
    return;
  }
  count_waits(stream, what, timeout);
  with_larger_values(what, "batch", [&] { streams::enqueue(stream, operations, {}); });
}

/// A graph has these operations.
void gpushm_timeline::note_recorded(std::span<const gpushm_stream_operation> what) {
  for (const gpushm_stream_operation& each : what) {
    gpushm_timeline& on = *each.timeline;
    if (stores(each)) {
      on.writer().use_streams();
    }
    if (each.kind == GPUSHM_STREAM_SET_FLAGS) {
      const std::lock_guard lock(on.mutex_);
      on.has_flags_ = true;
    } else if (each.kind == GPUSHM_STREAM_WAIT_FLAGS) {
      on.streams_wait_for_flags_.store(true, std::memory_order_relaxed);
    }
  }
}

gpushm_graph_operations::gpushm_graph_operations(CUstream stream,
                                                 std::span<const gpushm_stream_operation> what)
    : what_(what.begin(), what.end()) {
  if (!streams::is_capturing(stream)) {
    throw error(errc::invalid_argument,
                "record",
                {},
                "this stream is not captured",
                "begin a capture first (cudaStreamBeginCapture, torch.cuda.graph)");
  }
  const auto operations = gpushm_timeline::operations_of(stream, what, "record", milliseconds(0));
  node_ = streams::record(stream, operations, {});
  gpushm_timeline::note_recorded(what);
}

void gpushm_graph_operations::set(gpushm::cuda::CUgraphExec executable,
                                  CUstream stream,
                                  std::span<const std::uint64_t> values,
                                  milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  if (values.size() != what_.size()) {
    throw error(errc::invalid_argument,
                "set values",
                {},
                std::to_string(values.size()) + " values for " + std::to_string(what_.size()) +
                    " operations",
                "pass one for each operation that was recorded");
  }
  auto wanted = what_;
  for (std::size_t i = 0; i != wanted.size(); ++i) {
    wanted[i].value = values[i];
  }
  const auto operations = gpushm_timeline::operations_of(stream, wanted, "set values", timeout);
  gpushm_timeline::count_waits(stream, wanted, timeout);
  gpushm_timeline::with_larger_values(
      wanted, "set values", [&] { streams::set_operations(executable, node_, operations, {}); });
}
