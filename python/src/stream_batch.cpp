// SPDX-License-Identifier: Apache-2.0
#include "stream_batch.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "handle.hpp"
#include "stream.hpp"
#include "timeline.hpp"
#include "timeout.hpp"

namespace gpushm_python {
namespace {

using timelines = std::vector<std::shared_ptr<gpushm_timeline>>;

/// gpushm.StreamBatch.
struct batch_object {
  std::vector<gpushm_stream_operation> operations;
  timelines used;

  batch_object() = default;
  batch_object(const batch_object&) = delete;
  batch_object& operator=(const batch_object&) = delete;
  ~batch_object() { clear(); }

  /// Timelines that are closed by this may block, without the GIL.
  void clear() noexcept {
    operations.clear();
    timelines last = std::exchange(used, {});
    const nb::gil_scoped_release released;
    last.clear();
  }
  /// Calls `function(operations, count)` without the GIL, also if the batch is changed meanwhile.
  template <typename Function>
  void call(Function function) const {
    const std::vector<gpushm_stream_operation> batch = operations;
    timelines held = used;
    failure failed;
    {
      const nb::gil_scoped_release released;
      failed = failure::of(function(batch.data(), batch.size()));
      held.clear();
    }
    failed.raise_if_any();
  }
};

/// gpushm.GraphOperations.
struct graph_object {
  closable<gpushm_graph_operations> handle;
};

template <gpushm_stream_operation_kind Kind>
nb::object add(nb::handle self, const timeline_object& object, std::uint64_t value) {
  auto& batch = nb::cast<batch_object&>(self);
  std::shared_ptr<gpushm_timeline> timeline = object.handle.get("StreamBatch");
  batch.operations.push_back({timeline.get(), value, Kind});
  batch.used.push_back(std::move(timeline));
  return nb::borrow(self);
}

void enqueue(const batch_object& self, nb::handle stream, std::optional<double> timeout) {
  void* const on = to_stream(stream);
  const std::int64_t milliseconds = to_milliseconds(timeout);
  self.call([&](const gpushm_stream_operation* first, std::size_t count) {
    return gpushm_stream_batch(on, first, sizeof *first, count, milliseconds);
  });
}

nb::object record(const batch_object& self, nb::handle stream) {
  void* const on = to_stream(stream);
  gpushm_graph_operations* recorded = nullptr;
  self.call([&](const gpushm_stream_operation* first, std::size_t count) {
    return gpushm_graph_record(on, first, sizeof *first, count, &recorded);
  });
  return make_object<graph_object>(
      closable<gpushm_graph_operations>(std::shared_ptr<gpushm_graph_operations>(
          recorded, [used = self.used](gpushm_graph_operations* last) mutable {
            gpushm_graph_operations_free(last);
            used.clear();
          })));
}

/// A `cudaGraphExec_t`, as an integer or of PyTorch's graph.
void* to_executable(nb::handle graph) {
  const nb::object method = nb::getattr(graph, "raw_cuda_graph_exec", nb::none());
  const nb::object value = method.is_none() ? nb::borrow(graph) : method();
  if (!nb::isinstance<nb::int_>(value)) {
    throw nb::type_error(
        "executable is a cudaGraphExec_t as an integer, or a torch.cuda.CUDAGraph of PyTorch 2.11 "
        "with keep_graph=True");
  }
  return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(value));
}

void set_values(const graph_object& self,
                nb::handle executable,
                nb::handle stream,
                const std::vector<std::uint64_t>& values,
                std::optional<double> timeout) {
  void* const graph = to_executable(executable);
  void* const on = to_stream(stream);
  const std::int64_t milliseconds = to_milliseconds(timeout);
  call(self.handle.get("set_values"), [&](gpushm_graph_operations* recorded) {
    return gpushm_graph_set_values(recorded, graph, on, values.data(), values.size(), milliseconds);
  });
}

}  // namespace

void register_stream_batch(nb::module_& module) {
  nb::class_<graph_object>(
      module,
      "GraphOperations",
      nb::is_final(),
      "Signals and waits that a CUDA graph contains, of :meth:`StreamBatch.record`. Keeps their "
      "timelines\n"
      "open: must live as long as the graph is launched.")
      .def("set_values",
           set_values,
           nb::arg("executable"),
           nb::arg("stream"),
           nb::arg("values"),
           nb::arg("timeout").none() = 30.0,
           nb::sig("def set_values(self, executable: object, stream: object, values: "
                   "Sequence[int], timeout: float | None = 30.0) -> None"),
           "Set the values of the next launch on ``stream``, one for each operation, in their "
           "order;\n"
           "launches that are enqueued already keep theirs.\n\n"
           "``executable``: a ``cudaGraphExec_t`` as an integer, or a ``torch.cuda.CUDAGraph`` "
           "that was\n"
           "made with ``keep_graph=True``; the graph of which it was made must still exist. Does "
           "not wait\n"
           "for the GPU. Raises as :meth:`StreamBatch.enqueue`.");
  nb::class_<batch_object>(
      module,
      "StreamBatch",
      nb::is_final(),
      "Up to 64 signals and waits of timelines, in this order, for a CUDA stream by one call of "
      "the\n"
      "driver, or for a CUDA graph. Keeps the timelines open. Not for several threads at a "
      "time.\n\n"
      "Methods that add an operation return the batch: ``StreamBatch().wait(a, 1).signal(b, 2)``.\n"
      "They raise gpushm.InvalidArgumentError for a closed timeline.")
      .def(nb::init<>(), nb::sig("def __init__(self) -> None"))
      .def("wait",
           add<GPUSHM_STREAM_WAIT>,
           nb::arg("timeline"),
           nb::arg("value"),
           nb::sig("def wait(self, timeline: Timeline, value: int) -> StreamBatch"),
           "What is enqueued later begins when ``value`` is reached, or the timeline has ended.")
      .def("signal",
           add<GPUSHM_STREAM_SIGNAL>,
           nb::arg("timeline"),
           nb::arg("value"),
           nb::sig("def signal(self, timeline: Timeline, value: int) -> StreamBatch"),
           "Signal ``value`` when the stream has completed its earlier work.")
      .def("wait_flags",
           add<GPUSHM_STREAM_WAIT_FLAGS>,
           nb::arg("timeline"),
           nb::arg("flags"),
           nb::sig("def wait_flags(self, timeline: Timeline, flags: int) -> StreamBatch"),
           "As :meth:`wait`, until the timeline has any of these flags.")
      .def("set_flags",
           add<GPUSHM_STREAM_SET_FLAGS>,
           nb::arg("timeline"),
           nb::arg("flags"),
           nb::sig("def set_flags(self, timeline: Timeline, flags: int) -> StreamBatch"),
           "As :meth:`signal`: replace the flags.")
      .def("clear",
           &batch_object::clear,
           nb::sig("def clear(self) -> None"),
           "Remove all operations.")
      .def(
          "__len__",
          [](const batch_object& self) { return self.operations.size(); },
          nb::sig("def __len__(self) -> int"))
      .def("enqueue",
           enqueue,
           nb::arg("stream"),
           nb::arg("timeout").none() = 30.0,
           nb::sig("def enqueue(self, stream: object, timeout: float | None = 30.0) -> None"),
           "Enqueue all operations, or, if it raises, none; they stay in the batch. On a stream "
           "that is\n"
           "captured they are recorded, the same at each launch: right for flags.\n\n"
           "Does not block, unless too many streams wait: then at most ``timeout`` seconds. Raises "
           "as\n"
           ":meth:`Timeline.signal` and :meth:`Timeline.wait` with a stream.")
      .def("record",
           record,
           nb::arg("stream"),
           nb::sig("def record(self, stream: object) -> GraphOperations"),
           "Record the operations in the graph into which ``stream`` is captured; their values are "
           "set\n"
           "before each launch. The timelines must be prepared (:meth:`Timeline.prepare`).\n\n"
           "Raises gpushm.InvalidArgumentError (not captured, not prepared), DriverError (driver "
           "545 or\n"
           "later is needed).");
}

}  // namespace gpushm_python
