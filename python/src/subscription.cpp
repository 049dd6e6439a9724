// SPDX-License-Identifier: Apache-2.0
#include "subscription.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <utility>
#include <vector>

#include "in_python.hpp"
#include "segment.hpp"
#include "stop.hpp"
#include "turn.hpp"

namespace gpushm_python {
namespace {

struct subscription_object {
  explicit subscription_object(gpushm_subscription* subscription)
      : handle(subscription, gpushm_subscription_close) {}
  closable<gpushm_subscription> handle;
  nb::list present;
  turn calls;                // of the library, for one subscription: one at a time
  bool is_iterated = false;  // by asyncio, whose tasks wait for the descriptor
};

nb::object to_event(const gpushm_event& event) {
  nb::dict fields;
  fields["kind"] = to_string(gpushm_event_kind_name(event.kind));
  fields["name"] = nb::str(event.name, event.name_size);
  fields["generation"] = event.generation;
  fields["leases"] = event.leases;
  fields["peer_pid"] = event.peer_pid;
  fields["loss"] = to_string(gpushm_loss_cause_name(event.loss));
  fields["xid"] = event.xid;
  return nb::module_::import_("gpushm._types").attr("Event")(**fields);
}

nb::object next(subscription_object& self,
                std::optional<double> timeout,
                std::shared_ptr<stop_source> stop) {
  const auto subscription = self.handle.get("next");
  auto event = with_size<gpushm_event>();
  const bool arrived = wait_in_parts(
      to_milliseconds(timeout),
      {stop, self.handle.closing()},
      GPUSHM_OK,
      "next",
      [&](std::int64_t part, const call_stop& wait_stop) {
        step result;
        const deadline end(part);
        if (self.calls.begin(part, wait_stop)) {
          result.code = gpushm_subscription_next(
              subscription.get(), end.left_ms(), wait_stop.get(), &event, &result.done);
          self.calls.end();
        }
        return result;
      });
  return arrived ? to_event(event) : nb::none();
}

nb::list dispatch(subscription_object& self) {
  std::vector<gpushm_event> events;
  failure failed;
  const auto subscription = self.handle.get("dispatch");
  if (self.calls.try_begin()) {
    const nb::gil_scoped_release released;
    failed = failure::of(gpushm_subscription_dispatch(
        subscription.get(),
        [](void* user, const gpushm_event* event) {
          static_cast<std::vector<gpushm_event>*>(user)->push_back(*event);
          return true;
        },
        &events,
        nullptr));
    self.calls.end();
  }
  if (events.empty()) {
    failed.raise_if_any();
  }
  // After events, the failure is reported by the next call.
  nb::list result;
  for (const gpushm_event& each : events) {
    result.append(to_event(each));
  }
  return result;
}

int descriptor(subscription_object& self) {
  int result = -1;
  const auto subscription = self.handle.get("fileno");
  failure::of(gpushm_subscription_descriptor(subscription.get(), &result)).raise_if_any();
  return result;
}

void close(nb::handle self) {
  auto& subscription = nb::cast<subscription_object&>(self);
  subscription.handle.close();
  if (subscription.is_iterated) {
    aio("subscription_closed", self);
  }
}

}  // namespace

nb::list to_infos(gpushm_segment_list* list) {
  const std::unique_ptr<gpushm_segment_list, decltype(&gpushm_segment_list_free)> owner(
      list, gpushm_segment_list_free);
  nb::list result;
  for (std::size_t i = 0; i < gpushm_segment_list_size(list); ++i) {
    auto info = with_size<gpushm_segment_info>();
    failure::of(gpushm_segment_list_get(list, i, &info)).raise_if_any();
    result.append(to_info(info));
  }
  return result;
}

nb::object make_subscription(std::shared_ptr<gpushm_client> client, const std::string& prefix) {
  gpushm_subscription* made = nullptr;
  gpushm_segment_list* present = nullptr;
  call(std::move(client), [&](gpushm_client* handle) {
    return gpushm_client_subscribe(handle, text(prefix), &present, &made);
  });
  auto result = std::make_unique<subscription_object>(made);
  result->present = to_infos(present);
  return nb::cast(result.release(), nb::rv_policy::take_ownership);
}

void register_subscription(nb::module_& module) {
  nb::class_<subscription_object> type(
      module,
      "Subscription",
      nb::is_final(),
      "Events of segments: published, opened, released, removed, the death of a process.\n\n"
      "An asynchronous iterator, and a context manager. At most 1,024 unread events are kept; "
      "after\n"
      "that a ``\"resync\"`` event reports that older ones were dropped. May be shared between "
      "threads.");
  type.def_prop_ro(
          "present",
          [](const subscription_object& self) { return self.present; },
          nb::sig("def present(self) -> list[SegmentInfo]"),
          "The segments that existed when the subscription began.")
      .def("next",
           next,
           nb::arg("timeout").none() = 30.0,
           nb::kw_only(),
           nb::arg("stop").none() = nb::none(),
           nb::sig("def next(self, timeout: float | None = 30.0, *, stop: Stop | None = None) -> "
                   "Event | None"),
           "The next event; None after ``timeout`` seconds, also if another thread reads.\n"
           "Raises gpushm.BrokerGoneError once for each broker that dies, CancelledError.")
      .def("dispatch",
           dispatch,
           nb::sig("def dispatch(self) -> list[Event]"),
           "All unread events; none while another thread reads. Does not block.\n"
           "Raises gpushm.BrokerGoneError as :meth:`next`.")
      .def("fileno",
           descriptor,
           nb::sig("def fileno(self) -> int"),
           "A descriptor for an event loop: readable when :meth:`dispatch` has work to do. Do not "
           "read or\n"
           "close it.")
      .def(
          "__aiter__",
          [](nb::handle self) {
            nb::cast<subscription_object&>(self).is_iterated = true;
            return aio("Events", self);
          },
          nb::sig("def __aiter__(self) -> AsyncIterator[Event]"))
      .def("close",
           close,
           nb::sig("def close(self) -> None"),
           "End the subscription. Calls of other threads that wait end with "
           "gpushm.CancelledError.\n"
           "Again: no effect.");
  def_context_manager(type, "def __enter__(self) -> Subscription", [](subscription_object& self) {
    close(nb::find(self));
  });
}

}  // namespace gpushm_python
