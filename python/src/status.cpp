// SPDX-License-Identifier: Apache-2.0
// What the library says about itself and others: for tools and metrics.
#include "status.hpp"

#include <nanobind/stl/string.h>

#include <memory>
#include <string>

#include "gpushm/channel.h"
#include "gpushm/timeline.h"
#include "handle.hpp"

namespace gpushm_python {
namespace {

using std::string;

/// An object of gpushm._types.
nb::object to_tuple(const char* type, const nb::dict& fields) {
  return nb::module_::import_("gpushm._types").attr(type)(**fields);
}

nb::object cache_stats(const client_object& self) {
  auto stats = with_size<gpushm_cache_stats>();
  call(self.handle.get("cache_stats"),
       [&](gpushm_client* client) { return gpushm_client_cache_stats(client, &stats); });
  nb::dict fields;
  fields["hits"] = stats.hits;
  fields["misses"] = stats.misses;
  fields["evictions"] = stats.evictions;
  fields["kept_entries"] = stats.kept_entries;
  fields["kept_bytes"] = stats.kept_bytes;
  fields["used_entries"] = stats.used_entries;
  fields["used_bytes"] = stats.used_bytes;
  return to_tuple("CacheStats", fields);
}

const char* mode_name(gpushm_consumer_mode mode) {
  switch (mode) {
    case GPUSHM_CONSUMER_BLOCK:
      return "block";
    case GPUSHM_CONSUMER_LATEST:
      return "latest";
    case GPUSHM_CONSUMER_SHARE:
      break;
  }
  return "share";
}

nb::object consumer_status(const gpushm_channel_status* status, std::uint32_t index) {
  auto info = with_size<gpushm_channel_consumer_info>();
  failure::of(gpushm_channel_status_consumer(status, index, &info)).raise_if_any();
  nb::dict fields;
  fields["mode"] = mode_name(info.mode);
  fields["may_hold"] = info.may_hold;
  fields["holds"] = info.holds;
  fields["is_admitted"] = info.is_admitted;
  fields["uid"] = info.uid;
  fields["pid"] = info.pid;
  fields["start"] = info.start;
  fields["taken"] = info.taken;
  fields["released"] = info.released;
  fields["lag"] = info.lag;
  return to_tuple("ConsumerStatus", fields);
}

nb::object channel_status(const client_object& self, const string& name) {
  gpushm_channel_status* read = nullptr;
  call(self.handle.get("channel_status"), [&](gpushm_client* client) {
    return gpushm_channel_status_read(client, text(name), &read);
  });
  const std::shared_ptr<gpushm_channel_status> status(read, gpushm_channel_status_free);
  auto info = with_size<gpushm_channel_info>();
  failure::of(gpushm_channel_status_get(status.get(), &info)).raise_if_any();
  nb::list consumers;
  for (std::uint32_t i = 0; i < info.consumers; ++i) {
    consumers.append(consumer_status(status.get(), i));
  }
  nb::dict fields;
  fields["slots"] = info.slots;
  fields["slot_size"] = info.slot_bytes;
  fields["first_item"] = info.first_item;
  fields["announced"] = info.announced;
  fields["published"] = info.published;
  fields["has_producer"] = info.has_producer;
  fields["is_closed"] = info.is_closed;
  fields["producer_uid"] = info.producer_uid;
  fields["producer_pid"] = info.producer_pid;
  fields["consumers"] = nb::tuple(consumers);
  return to_tuple("ChannelStatus", fields);
}

nb::object describe_ticket(const nb::bytes& ticket) {
  // 5 kB: not on the stack of a caller.
  const auto info = std::make_unique<gpushm_ticket_info>(with_size<gpushm_ticket_info>());
  failure::of(gpushm_describe_ticket(ticket.c_str(), ticket.size(), info.get())).raise_if_any();
  nb::dict fields;
  fields["name"] = nb::str(info->name, info->name_size);
  fields["socket"] = nb::str(info->socket_path, info->socket_path_size);
  fields["size"] = info->size_bytes;
  fields["allocated_size"] = info->allocated_bytes;
  fields["generation"] = info->generation;
  fields["exporter_pid"] = info->exporter_pid;
  fields["backend"] = to_string(gpushm_backend_name(info->backend));
  fields["has_handle"] = info->has_handle;
  fields["device"] = device_text(info->device);
  return to_tuple("TicketInfo", fields);
}

nb::object waiting_streams() {
  auto counts = with_size<gpushm_waiting_streams>();
  failure::of(gpushm_waiting_streams_get(&counts)).raise_if_any();
  nb::dict fields;
  fields["waiting"] = counts.waiting;
  fields["limit"] = counts.limit;
  fields["connections"] = counts.connections;
  return to_tuple("WaitingStreams", fields);
}

}  // namespace

void register_status_methods(nb::class_<client_object>& type) {
  type.def("cache_stats",
           cache_stats,
           nb::sig("def cache_stats(self) -> CacheStats"),
           "Counters and contents of the import cache. Reads memory only.")
      .def("channel_status",
           channel_status,
           nb::arg("name"),
           nb::sig("def channel_status(self, name: str) -> ChannelStatus"),
           "A channel and its consumers, as a process sees them that is not a member. Changes "
           "nothing.\n"
           "Raises gpushm.NoSuchSegmentError.")
      .def(
          "unfence",
          [](const client_object& self, const string& name) {
            call(self.handle.get("unfence"),
                 [&](gpushm_client* client) { return gpushm_client_unfence(client, text(name)); });
          },
          nb::arg("name"),
          nb::sig("def unfence(self, name: str) -> None"),
          "For operators: end the segment's leases of processes that have died and whose fence is "
          "still\n"
          "pending, though their GPU work may still write. Raises gpushm.NoSuchSegmentError,\n"
          "PermissionDeniedError, InvalidArgumentError (no lease waits for a fence).");
}

void register_status(nb::module_& module) {
  module.def("describe_ticket",
             describe_ticket,
             nb::arg("ticket"),
             nb::sig("def describe_ticket(ticket: bytes) -> TicketInfo"),
             "The contents of a ticket. Opens nothing. Raises gpushm.InvalidTicketError,\n"
             "UnsupportedVersionError.");
  module.def("waiting_streams",
             waiting_streams,
             nb::sig("def waiting_streams() -> WaitingStreams"),
             "How many streams of this process wait for timelines, and how many may.");
}

}  // namespace gpushm_python
