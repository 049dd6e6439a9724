// SPDX-License-Identifier: Apache-2.0
// Windows (gpushm/window.h).
#include "window.hpp"

#include <gpushm/window.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "handle.hpp"

namespace gpushm_python {
namespace {

/// gpushm.Window.
struct window_object {
  closable<gpushm_window> handle;
  closable<gpushm_client> client;  ///< of the segment that is shown, for its timelines
};

nb::object make_window(const segment_object& self) {
  const auto segment = self.handle.get("window");
  gpushm_window* made = nullptr;
  call(segment, [&](gpushm_segment* handle) { return gpushm_window_create(handle, &made); });
  return make_object<window_object>(closable<gpushm_window>(made, gpushm_window_close),
                                    closable<gpushm_client>(self.client.shared()));
}

void show(window_object& self, const segment_object& segment) {
  const auto next = segment.handle.get("show");
  const auto client = segment.client.shared();
  call(self.handle.get("show"),
       [&](gpushm_window* window) { return gpushm_window_show(window, next.get()); });
  if (!self.handle.is_closed()) {
    self.client.put_back(client);
  }
}

nb::object segment(const window_object& self) {
  gpushm_segment* shown = nullptr;
  call(self.handle.get("segment"),
       [&](gpushm_window* window) { return gpushm_window_segment(window, &shown); });
  return make_object<segment_object>(own_segment(shown), self.client.shared());
}

memory_range range(const window_object& self, const char* operation) {
  auto window = self.handle.get(operation);
  if (gpushm_window_state(window.get()) == GPUSHM_SEGMENT_SUSPENDED) {
    raise(
        GPUSHM_ERRC_INVALID_ARGUMENT,
        operation,
        "",
        "nothing is mapped at the window's address: it changes now, or the last change has failed",
        "show a segment again");
  }
  memory_range result;
  result.readonly = gpushm_window_mutable_data(window.get()) == nullptr;
  result.data = const_cast<void*>(gpushm_window_data(window.get()));
  result.bytes = gpushm_window_size_bytes(window.get());
  const std::int32_t ordinal = gpushm_window_ordinal(window.get());
  result.device =
      ordinal < 0 ? dl::device{dl::device_cpu, 0} : dl::device{dl::device_cuda, ordinal};
  result.name = "window";  // not a segment's: it shows others later
  result.of_window = true;
  result.owner = std::move(window);
  return result;
}

array view(const window_object& self,
           nb::handle dtype,
           nb::handle shape,
           std::uint64_t offset,
           nb::handle strides) {
  return make_array(range(self, "view"), dtype, shape, offset, strides, std::nullopt);
}

std::string device(const window_object& self) {
  const std::int32_t ordinal = gpushm_window_ordinal(self.handle.get("device").get());
  return ordinal < 0 ? "host" : "cuda:" + std::to_string(ordinal);
}

std::string state(const window_object& self) {
  return to_string(gpushm_segment_state_name(gpushm_window_state(self.handle.get("state").get())));
}

void close(window_object& self) {
  self.handle.close();
  self.client.close();
}

std::string repr(const window_object& self) {
  if (self.handle.is_closed()) {
    return "<gpushm.Window, closed>";
  }
  const auto window = self.handle.get("repr");
  return "<gpushm.Window of " + std::to_string(gpushm_window_size_bytes(window.get())) +
         " bytes, " + device(self) + ", " + state(self) + ">";
}

}  // namespace

void register_window(nb::module_& module) {
  nb::class_<window_object> type(
      module,
      "Window",
      nb::is_final(),
      "Addresses at which this process sees the memory of one segment after the other.\n\n"
      "An engine that has captured its addresses in CUDA graphs gets new weights at them without a "
      "copy:\n"
      "``window = segment.window()``, tensors of ``window.view(...)``, and ``window.show(next)``. "
      "Arrays,\n"
      "buffers and tensors of a window keep it, and with it the segment that it shows.\n"
      "A context manager: closes at the end. May be shared between threads.\n"
      "Attributes and methods raise gpushm.InvalidArgumentError after :meth:`close`.");
  type.def("show",
           show,
           nb::arg("segment"),
           nb::sig("def show(self, segment: Segment) -> None"),
           "Map the memory of another segment at the same addresses, instead of the former one.\n\n"
           "``segment`` has the size, the chunks, the device and the access of the first one, and "
           "may be closed\n"
           "afterwards. No effect if it is shown already. Finish all work that uses the window "
           "before: CUDA\n"
           "graphs, streams, other libraries, and what they have registered at its addresses. Only "
           "work of the\n"
           "legacy default stream is detected. Blocks for round trips to the broker, and while the "
           "driver maps.\n\n"
           "After a failure the former segment is shown, unless :attr:`state` is "
           "``\"suspended\"``: then nothing\n"
           "is mapped, every access fails as to unmapped memory, and another call may succeed.\n"
           "Raises gpushm.SizeMismatchError, InvalidArgumentError (another device or access, or "
           "suspended),\n"
           "NotSupportedError, SegmentBusyError, TooManyDescriptorsError, BrokerGoneError, "
           "DriverError.")
      .def("view",
           view,
           nb::arg("dtype") = "uint8",
           nb::arg("shape").none() = nb::none(),
           nb::kw_only(),
           nb::arg("offset") = 0,
           nb::arg("strides").none() = nb::none(),
           nb::sig("def view(self, dtype: object = 'uint8', shape: int | Sequence[int] | None = "
                   "None, *, offset: int = 0, strides: Sequence[int] | None = None) -> Array"),
           "An array on the window, as :meth:`Segment.view` makes it; it keeps the window open.\n\n"
           "Its elements are those of the segment that is shown. It cannot be pickled: its "
           "addresses are of this\n"
           "process. Raises gpushm.SizeMismatchError, InvalidArgumentError (nothing is mapped), "
           "TypeError,\n"
           "ValueError.")
      .def_prop_ro("segment",
                   segment,
                   nb::sig("def segment(self) -> Segment"),
                   "The segment that is shown, as another open of it: close it. While nothing is "
                   "mapped, the last one.")
      .def_prop_ro("state",
                   state,
                   nb::sig("def state(self) -> str"),
                   "As :attr:`Segment.state`, of the segment that is shown; ``\"suspended\"`` "
                   "while nothing is\n"
                   "mapped. Reads shared memory only.")
      .def_prop_ro(
          "data_ptr",
          [](const window_object& self) {
            return reinterpret_cast<std::uintptr_t>(
                gpushm_window_data(self.handle.get("data_ptr").get()));
          },
          nb::sig("def data_ptr(self) -> int"),
          "Address of the first byte, which never changes: a device pointer on a GPU.")
      .def_prop_ro(
          "size",
          [](const window_object& self) {
            return gpushm_window_size_bytes(self.handle.get("size").get());
          },
          nb::sig("def size(self) -> int"),
          "Bytes, as of each of its segments.")
      .def_prop_ro("device",
                   device,
                   nb::sig("def device(self) -> str"),
                   "What uses the memory: ``\"host\"``, or ``\"cuda:0\"`` as CUDA numbers it in "
                   "this process.")
      .def_prop_ro(
          "closed",
          [](const window_object& self) { return self.handle.is_closed(); },
          nb::sig("def closed(self) -> bool"),
          "Whether :meth:`close` was called.")
      .def("close",
           close,
           nb::sig("def close(self) -> None"),
           "Give up this handle. Again: no effect. The addresses stay reserved as long as an array "
           "of the window\n"
           "exists. Does not wait for GPU work: synchronise first.")
      .def("__repr__", repr, nb::sig("def __repr__(self) -> str"));
  def_context_manager(type, "def __enter__(self) -> Window", close);
}

void register_window_methods(nb::class_<segment_object>& type) {
  type.def("window",
           make_window,
           nb::sig("def window(self) -> Window"),
           "Map the memory a second time, at addresses that can show other segments later.\n\n"
           "For the backends ``\"host\"`` and ``\"cuda-vmm\"``. While a window shows it, the "
           "segment can be suspended\n"
           "with ``\"keep\"`` only, which does not change the window. Blocks for round trips to "
           "the broker, and\n"
           "while the driver maps.\n"
           "Raises gpushm.NotSupportedError, InvalidArgumentError (suspended, or imported without "
           "a broker),\n"
           "TooManyDescriptorsError, OutOfMemoryError, BrokerGoneError, DriverError.");
}

}  // namespace gpushm_python
