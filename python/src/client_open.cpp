// SPDX-License-Identifier: Apache-2.0
// Opens of segments by name.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "client.hpp"
#include "device.hpp"
#include "in_python.hpp"
#include "segment.hpp"
#include "stop.hpp"

namespace gpushm_python {
namespace {

using std::string;

/// Arguments of an open that may wait, and what it has got.
struct opening {
  std::shared_ptr<gpushm_client> client;
  std::vector<string> names;
  string device;
  gpushm_open_options options = with_size<gpushm_open_options>();
  std::int64_t timeout_ms = 0;
  std::vector<gpushm_open_result> results;

  opening() = default;
  opening(const opening&) = delete;
  opening& operator=(const opening&) = delete;
  ~opening() {
    for (const gpushm_open_result& each : results) {
      gpushm_segment_close(each.segment);
      gpushm_error_free(each.failure);
    }
  }
};

std::shared_ptr<opening> make_opening(client_object& self,
                                      const string& access,
                                      std::optional<double> timeout,
                                      nb::handle device) {
  auto result = std::make_shared<opening>();
  result->client = self.handle.get("open");
  result->device = to_device(device);
  result->options.access = to_access(access);
  result->timeout_ms = to_milliseconds(timeout);
  result->options.device = text(result->device);
  return result;
}

gpushm_segment* take(gpushm_open_result& result) {
  return std::exchange(result.segment, nullptr);
}

nb::object open(client_object& self,
                const string& name,
                const string& access,
                std::optional<double> timeout,
                nb::handle device,
                std::optional<std::uint64_t> size,
                std::shared_ptr<stop_source> stop) {
  auto work = make_opening(self, access, timeout, device);
  work->options.expected_size_bytes = size.value_or(0);
  work->names = {name};
  work->results.resize(1);
  run_with_timeout(work->timeout_ms, {stop, self.handle.closing()}, [work](gpushm_stop* wait_stop) {
    work->options.stop = wait_stop;
    return gpushm_client_open(work->client.get(),
                              text(work->names[0]),
                              &work->options,
                              work->timeout_ms,
                              &work->results[0].segment);
  });
  return make_object<segment_object>(own_segment(take(work->results[0])), work->client);
}

nb::list open_many(client_object& self,
                   std::vector<string> names,
                   const string& access,
                   std::optional<double> timeout,
                   nb::handle device,
                   bool return_errors,
                   std::shared_ptr<stop_source> stop) {
  auto work = make_opening(self, access, timeout, device);
  work->names = std::move(names);
  work->results.resize(work->names.size());
  run_with_timeout(work->timeout_ms, {stop, self.handle.closing()}, [work](gpushm_stop* wait_stop) {
    std::vector<gpushm_string> texts;
    for (const string& name : work->names) {
      texts.push_back(text(name));
    }
    work->options.stop = wait_stop;
    return gpushm_client_open_many(work->client.get(),
                                   texts.data(),
                                   texts.size(),
                                   &work->options,
                                   work->timeout_ms,
                                   work->results.data());
  });
  nb::list list;
  for (gpushm_open_result& each : work->results) {
    if (each.segment != nullptr) {
      list.append(make_object<segment_object>(own_segment(take(each)), work->client));
      continue;
    }
    const nb::object exception = make_exception(each.failure);
    if (!return_errors) {
      PyErr_SetObject(exception.type().ptr(), exception.ptr());
      throw nb::python_error();
    }
    list.append(exception);
  }
  return list;
}

}  // namespace

gpushm_access to_access(const string& text) {
  if (text == "read") {
    return GPUSHM_ACCESS_READ;
  }
  if (text == "read-write") {
    return GPUSHM_ACCESS_READ_WRITE;
  }
  throw nb::value_error(R"(access is "read" or "read-write")");
}

std::shared_ptr<gpushm_segment> open_now(const std::shared_ptr<gpushm_client>& client,
                                         const std::string& name,
                                         gpushm_access access,
                                         const std::string& device) {
  auto options = with_size<gpushm_open_options>();
  options.access = access;
  options.device = text(device);
  gpushm_segment* opened = nullptr;
  call(client, [&](gpushm_client* handle) {
    return gpushm_client_try_open(handle, text(name), &options, 0, &opened);
  });
  return opened == nullptr ? nullptr : own_segment(opened);
}

void register_open_methods(nb::class_<client_object>& type) {
  type.def(
          "open",
          open,
          nb::arg("name"),
          nb::kw_only(),
          nb::arg("access") = "read",
          nb::arg("timeout").none() = 0.0,
          nb::arg("device").none() = nb::none(),
          nb::arg("size").none() = nb::none(),
          nb::arg("stop").none() = nb::none(),
          nb::sig("def open(self, name: str, *, access: str = 'read', timeout: float | None = 0.0, "
                  "device: Device "
                  "| None = None, size: int | None = None, stop: Stop | None = None) -> Segment"),
          "Open a published segment. Blocks until it is published, at most ``timeout`` seconds.\n\n"
          "``access``: ``\"read\"`` (mapped for reading only) or ``\"read-write\"``. ``device``: "
          "the GPU\n"
          "that uses the memory; None: where the memory is. ``size``: what the segment must "
          "have.\n\n"
          "Raises gpushm.NoSuchSegmentError (not published in time), SizeMismatchError,\n"
          "DeviceNotVisibleError, PeerDiedError, CancelledError.")
      .def("open_many",
           open_many,
           nb::arg("names"),
           nb::kw_only(),
           nb::arg("access") = "read",
           nb::arg("timeout").none() = 0.0,
           nb::arg("device").none() = nb::none(),
           nb::arg("return_errors") = false,
           nb::arg("stop").none() = nb::none(),
           nb::sig(
               "def open_many(self, names: Sequence[str], *, access: str = 'read', timeout: "
               "float | None = "
               "0.0, device: Device | None = None, return_errors: bool = False, stop: Stop | None "
               "= None) -> "
               "list[Any]"),
           "Open any number of segments with few round trips, in the order of ``names``. "
           "``timeout`` is for\n"
           "all of them together.\n\n"
           "Raises the first failure; with ``return_errors``, the list has exceptions in the "
           "places of\n"
           "segments that cannot be opened. Otherwise as :meth:`open`.")
      .def(
          "open_async",
          [](nb::handle self,
             const string& name,
             const string& access,
             std::optional<double> timeout,
             nb::handle device) { return aio("client_open", self, name, access, timeout, device); },
          nb::arg("name"),
          nb::kw_only(),
          nb::arg("access") = "read",
          nb::arg("timeout").none() = 30.0,
          nb::arg("device").none() = nb::none(),
          nb::sig("def open_async(self, name: str, *, access: str = 'read', timeout: float | None "
                  "= 30.0, device: "
                  "Device | None = None) -> Coroutine[Any, Any, Segment]"),
          "As :meth:`open`, for asyncio. Cancelling the task ends the wait.");
}

}  // namespace gpushm_python
