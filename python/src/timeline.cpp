// SPDX-License-Identifier: Apache-2.0
#include "timeline.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "in_python.hpp"
#include "poller.hpp"
#include "process_state.hpp"
#include "stop.hpp"
#include "stream.hpp"
#include "ticket.hpp"

namespace gpushm_python {
namespace {

/// Timelines whose last user is gone, but for which a stream may still wait: closing them now would
/// take the memory away that the stream reads.
struct waited_for {
  std::mutex mutex;
  std::vector<gpushm_timeline*> timelines;
};

waited_for& parked() {
  return process_state<waited_for>();
}

void close_timeline(gpushm_timeline* timeline);

/// The deleter of a timeline.
struct timeline_release {
  void operator()(gpushm_timeline* timeline) const {
    if (!is_handed_over) {
      without_gil([&] { close_timeline(timeline); });  // may wait for streams
    }
  }
  bool is_handed_over = false;
};

/// Whether a stream of this process waits, as far as the library has seen.
bool is_waited_for(const gpushm_timeline* timeline) {
  return gpushm_timeline_check(timeline) == GPUSHM_ERRC_INVALID_ARGUMENT;
}

void close_timeline(gpushm_timeline* timeline) {
  waited_for& waited = parked();
  std::vector<gpushm_timeline*> finished;
  {
    const std::lock_guard lock(waited.mutex);
    waited.timelines.push_back(timeline);
    std::erase_if(waited.timelines, [&](gpushm_timeline* each) {
      if (!gpushm_timeline_is_own(each) && is_waited_for(each)) {
        return false;
      }
      finished.push_back(each);
      return true;
    });
  }
  for (gpushm_timeline* each : finished) {
    gpushm_timeline_close(each);
  }
}

[[noreturn]] void raise_late(const timeline_object& self, const std::string& cause) {
  const auto timeline = self.handle.get("wait");
  raise(GPUSHM_ERRC_TIMED_OUT,
        "wait",
        to_string(gpushm_timeline_name(timeline.get())),
        cause + " was not reached in time",
        "wait longer, or see whether the process that signals it makes progress");
}

std::uint64_t value(const timeline_object& self) {
  std::uint64_t result = 0;
  call(self.handle.get("value"),
       [&](gpushm_timeline* timeline) { return gpushm_timeline_value(timeline, &result); });
  return result;
}

void signal(timeline_object& self, std::uint64_t value, nb::handle stream) {
  const auto timeline = self.handle.get("signal");
  if (stream.is_none()) {
    call(timeline, [&](gpushm_timeline* handle) { return gpushm_timeline_signal(handle, value); });
    return;
  }
  void* const on = to_stream(stream);
  call(timeline,
       [&](gpushm_timeline* handle) { return gpushm_timeline_signal_on(handle, on, value); });
}

bool wait_on_cpu(timeline_object& self,
                 std::uint64_t value,
                 std::int64_t timeout_ms,
                 const std::shared_ptr<stop_source>& stop) {
  const auto timeline = self.handle.get("wait");
  return wait_in_parts(timeout_ms,
                       {stop, self.handle.closing()},
                       GPUSHM_ERRC_GONE_OR_REPLACED,
                       "wait",
                       [&](std::int64_t part, const call_stop& wait_stop) {
                         step result;
                         result.code = gpushm_timeline_wait(
                             timeline.get(), value, part, wait_stop.get(), &result.done);
                         return result;
                       });
}

void wait(timeline_object& self,
          std::uint64_t value,
          std::optional<double> timeout,
          nb::handle stream,
          std::shared_ptr<stop_source> stop) {
  const std::int64_t milliseconds = to_milliseconds(timeout);
  if (!stream.is_none()) {
    void* const on = to_stream(stream);
    call(self.handle.get("wait"), [&](gpushm_timeline* timeline) {
      return gpushm_timeline_wait_on(timeline, on, value, milliseconds);
    });
    return;
  }
  if (!wait_on_cpu(self, value, milliseconds, stop)) {
    raise_late(self, std::to_string(value));
  }
}

bool try_wait(timeline_object& self,
              std::uint64_t value,
              std::optional<double> timeout,
              std::shared_ptr<stop_source> stop) {
  return wait_on_cpu(self, value, to_milliseconds(timeout), stop);
}

void set_flags(timeline_object& self, std::uint64_t flags) {
  call(self.handle.get("set_flags"),
       [&](gpushm_timeline* timeline) { return gpushm_timeline_set_flags(timeline, flags); });
}

void wait_flags(timeline_object& self,
                std::uint64_t flags,
                std::optional<double> timeout,
                std::shared_ptr<stop_source> stop) {
  const auto timeline = self.handle.get("wait_flags");
  const bool met = wait_in_parts(to_milliseconds(timeout),
                                 {stop, self.handle.closing()},
                                 GPUSHM_ERRC_GONE_OR_REPLACED,
                                 "wait_flags",
                                 [&](std::int64_t part, const call_stop& wait_stop) {
                                   step result;
                                   result.code = gpushm_timeline_wait_flags(
                                       timeline.get(), flags, part, wait_stop.get(), &result.done);
                                   return result;
                                 });
  if (!met) {
    raise_late(self, "any of the flags " + std::to_string(flags));
  }
}

void hand_over(timeline_object& self) {
  static_cast<void>(self.handle.get("hand_over"));
  // The C function releases the handle: nothing else may have it, or get it meanwhile.
  std::shared_ptr<gpushm_timeline> timeline = self.handle.take();
  if (timeline.use_count() != 1) {
    const std::string name = to_string(gpushm_timeline_name(timeline.get()));
    self.handle.put_back(std::move(timeline));
    raise(GPUSHM_ERRC_INVALID_ARGUMENT,
          "hand_over",
          name,
          "arrays, or calls of other threads, use this timeline",
          "hand it over when they have ended");
  }
  failure failed;
  {
    const nb::gil_scoped_release released;
    failed = failure::of(gpushm_timeline_hand_over(timeline.get()));
    if (failed.code() == GPUSHM_OK) {
      std::get_deleter<timeline_release>(timeline)->is_handed_over = true;
      timeline.reset();
    }
  }
  if (timeline != nullptr) {
    self.handle.put_back(std::move(timeline));
  }
  failed.raise_if_any();
}

nb::object take_over(timeline_object& self,
                     std::optional<double> timeout,
                     std::shared_ptr<stop_source> stop) {
  struct state {
    std::shared_ptr<gpushm_timeline> opened;
    std::shared_ptr<gpushm_timeline> result;
  };
  auto work = std::make_shared<state>();
  work->opened = self.handle.get("take_over");
  run_cancellable({stop, self.handle.closing()},
                  [work, milliseconds = to_milliseconds(timeout)](gpushm_stop* wait_stop) {
                    gpushm_timeline* taken = nullptr;
                    const gpushm_errc code = gpushm_timeline_take_over(
                        work->opened.get(), milliseconds, wait_stop, &taken);
                    if (code == GPUSHM_OK) {
                      work->result = own_timeline(taken);
                    }
                    return code;
                  });
  return make_object<timeline_object>(work->result);
}

/// As `wait`, without waiting: True, or as `to_progress`.
nb::object try_value(timeline_object& self,
                     std::uint64_t value,
                     poller_object& poller,
                     std::uint64_t key,
                     bool has_waited) {
  require_open_still(self, has_waited, "wait");
  const auto handle = self.handle.get("wait");
  return to_progress(poller.watch(key,
                                  self.handle.closing(),
                                  [&](auto* poller_handle, auto* stop, auto* progress) {
                                    return gpushm_timeline_watch(
                                        handle.get(), value, poller_handle, key, stop, progress);
                                  }),
                     nb::bool_(true));
}

}  // namespace

std::shared_ptr<gpushm_timeline> own_timeline(gpushm_timeline* timeline) {
  return {timeline, timeline_release{}};
}

void register_timeline(nb::module_& module) {
  module.def("try_value",
             try_value,
             nb::arg("timeline"),
             nb::arg("value"),
             nb::arg("poller"),
             nb::arg("key"),
             nb::arg("has_waited"),
             nb::sig("def try_value(timeline: Timeline, value: int, poller: Poller, key: int, "
                     "has_waited: bool) -> bool | None"),
             "True: reached; False: there is a watch; None: only :meth:`Timeline.wait` can tell.");
  nb::class_<timeline_object> type(
      module,
      "Timeline",
      nb::is_final(),
      "A 64-bit counter in shared memory that one process signals and any process of the domain "
      "waits\n"
      "for, on CPUs and on CUDA streams. Its value only grows.\n\n"
      "``stream`` arguments are integers (0 and 1: the legacy default stream, 2: the per-thread "
      "one,\n"
      "else a ``cudaStream_t``), or stream objects of PyTorch, CuPy, Numba or cuda.core.\n"
      "A context manager: closes at the end. May be shared between threads.");
  type.def_prop_ro(
          "name",
          [](const timeline_object& self) {
            return to_string(gpushm_timeline_name(self.handle.get("name").get()));
          },
          nb::sig("def name(self) -> str"),
          "The name; empty for a timeline of a segment.")
      .def_prop_ro(
          "own",
          [](const timeline_object& self) {
            return gpushm_timeline_is_own(self.handle.get("own").get());
          },
          nb::sig("def own(self) -> bool"),
          "Whether this process has created it, and so signals it.")
      .def_prop_ro("value",
                   value,
                   nb::sig("def value(self) -> int"),
                   "The last value that was signaled. No system call.")
      .def("signal",
           signal,
           nb::arg("value"),
           nb::kw_only(),
           nb::arg("stream").none() = nb::none(),
           nb::sig("def signal(self, value: int, *, stream: object = None) -> None"),
           "Signal a larger value: now, or when ``stream`` has completed its earlier work.\n\n"
           "Does not block; without ``stream``: after streams that have still to signal, and waits "
           "at most a\nsecond for a graph that has.\n"
           "Raises gpushm.ValueOutOfRangeError, InvalidArgumentError (not larger than before, or "
           "not this\n"
           "process's timeline), TimedOutError (a graph has still to signal), DriverError.")
      .def("wait",
           wait,
           nb::arg("value"),
           nb::arg("timeout").none() = 30.0,
           nb::kw_only(),
           nb::arg("stream").none() = nb::none(),
           nb::arg("stop").none() = nb::none(),
           nb::sig(
               "def wait(self, value: int, timeout: float | None = 30.0, *, stream: object = None, "
               "stop: Stop | None = None) -> None"),
           "Wait until ``value`` is reached, at most ``timeout`` seconds.\n\n"
           "With ``stream``: what it is given later waits, and this call does not block, unless "
           "too many\n"
           "streams wait; synchronise it and call :meth:`check` before its results are used.\n"
           "Raises gpushm.TimedOutError, PeerDiedError, GoneOrReplacedError, CancelledError,\n"
           "TooManyWaitsError.")
      .def("try_wait",
           try_wait,
           nb::arg("value"),
           nb::arg("timeout").none() = 0.0,
           nb::kw_only(),
           nb::arg("stop").none() = nb::none(),
           nb::sig("def try_wait(self, value: int, timeout: float | None = 0.0, *, stop: Stop | "
                   "None = None) "
                   "-> bool"),
           "As :meth:`wait` on the CPU; False if ``value`` is not reached in time.")
      .def(
          "wait_async",
          [](nb::handle self, std::uint64_t value, std::optional<double> timeout) {
            return aio("timeline_wait", self, value, timeout);
          },
          nb::arg("value"),
          nb::arg("timeout").none() = 30.0,
          nb::sig("def wait_async(self, value: int, timeout: float | None = 30.0) -> "
                  "Coroutine[Any, Any, "
                  "None]"),
          "As :meth:`wait`, for asyncio. Cancelling the task ends the wait.")
      .def(
          "check",
          [](const timeline_object& self) {
            call(self.handle.get("check"), gpushm_timeline_check);
          },
          nb::sig("def check(self) -> None"),
          "Raise gpushm.PeerDiedError or GoneOrReplacedError if the timeline had ended before a "
          "value was\n"
          "reached for which a stream of this process was to wait: what the stream has done since "
          "must\n"
          "not be trusted. Synchronise the stream first, else gpushm.InvalidArgumentError.")
      .def("set_flags",
           set_flags,
           nb::arg("flags"),
           nb::sig("def set_flags(self, flags: int) -> None"),
           "Replace the flags (bits 0 to 31) of a timeline that has flags instead of values.\n"
           "Raises gpushm.InvalidArgumentError, ValueOutOfRangeError.")
      .def("wait_flags",
           wait_flags,
           nb::arg("flags"),
           nb::arg("timeout").none() = 30.0,
           nb::kw_only(),
           nb::arg("stop").none() = nb::none(),
           nb::sig("def wait_flags(self, flags: int, timeout: float | None = 30.0, *, stop: Stop | "
                   "None = None) "
                   "-> None"),
           "Wait until the timeline has any of ``flags``. Raises as :meth:`wait`.")
      .def(
          "prepare",
          [](timeline_object& self, nb::handle stream) {
            void* const on = to_stream(stream);
            call(self.handle.get("prepare"),
                 [&](gpushm_timeline* timeline) { return gpushm_timeline_prepare(timeline, on); });
          },
          nb::arg("stream"),
          nb::sig("def prepare(self, stream: object) -> None"),
          "Register the timeline's memory with CUDA, before a stream is captured. Takes 100 us.\n"
          "Raises gpushm.DriverUnavailableError, DriverError.")
      .def("hand_over",
           hand_over,
           nb::sig("def hand_over(self) -> None"),
           "Give the timeline to a process that calls :meth:`take_over`, and close this object.\n\n"
           "Blocks for at most a second. Raises gpushm.TimedOutError, InvalidArgumentError.")
      .def("take_over",
           take_over,
           nb::arg("timeout").none() = 30.0,
           nb::kw_only(),
           nb::arg("stop").none() = nb::none(),
           nb::sig(
               "def take_over(self, timeout: float | None = 30.0, *, stop: Stop | None = None) -> "
               "Timeline"),
           "Wait until the signaler hands the timeline over or has died, and signal it from then "
           "on, by the\n"
           "timeline that is returned. Raises gpushm.TimedOutError, AlreadyExistsError, "
           "CancelledError.")
      .def(
          "close",
          [](timeline_object& self) { self.handle.close(); },
          nb::sig("def close(self) -> None"),
          "In the process that created it: end the timeline, which releases all waits; waits at "
          "most a\n"
          "second for streams. Arrays that refer to it keep it open.")
      .def(
          "__repr__",
          [](const timeline_object& self) -> std::string {
            if (self.handle.is_closed()) {
              return "<gpushm.Timeline, closed>";
            }
            const auto timeline = self.handle.get("repr");
            return "<gpushm.Timeline \"" + to_string(gpushm_timeline_name(timeline.get())) + "\">";
          },
          nb::sig("def __repr__(self) -> str"));
  def_context_manager(
      type, "def __enter__(self) -> Timeline", [](timeline_object& self) { self.handle.close(); });
  register_ticket_methods(type);
}

}  // namespace gpushm_python
