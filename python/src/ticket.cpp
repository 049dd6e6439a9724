// SPDX-License-Identifier: Apache-2.0
#include "ticket.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client.hpp"
#include "device.hpp"
#include "exchange.hpp"
#include "in_python.hpp"
#include "stop.hpp"
#include "timeout.hpp"

namespace gpushm_python {
namespace {

using std::string;

nb::bytes to_bytes(const gpushm_ticket& ticket) {
  return nb::bytes(ticket.bytes, ticket.size);
}

nb::bytes export_memory(nb::handle tensor, nb::handle stream) {
  const array what = import_object(tensor, stream);
  auto ticket = with_size<gpushm_ticket>();
  call_released([&] { return gpushm_export_memory(what.data, what.extent_bytes(), &ticket); });
  return to_bytes(ticket);
}

/// The arguments of an import, from bytes or from a file.
struct importing {
  string source;
  string device;
  string directory;
  gpushm_import_options options = with_size<gpushm_import_options>();
  std::int64_t timeout_ms = 0;  ///< of a file
  gpushm_segment* segment = nullptr;

  importing() = default;
  importing(const importing&) = delete;
  importing& operator=(const importing&) = delete;
  ~importing() { gpushm_segment_close(segment); }
};

std::shared_ptr<importing> make_importing(string source, const string& access, nb::handle device) {
  in_python("gpushm._log", "begin");
  auto result = std::make_shared<importing>();
  result->source = std::move(source);
  result->device = to_device(device);
  result->options.access = to_access(access);
  result->options.device = text(result->device);
  return result;
}

nb::object to_segment(importing& done) {
  return make_object<segment_object>(own_segment(std::exchange(done.segment, nullptr)), nullptr);
}

nb::object import_ticket(const nb::bytes& ticket,
                         const string& access,
                         nb::handle device,
                         nb::handle directory,
                         std::shared_ptr<stop_source> stop) {
  auto work = make_importing({ticket.c_str(), ticket.size()}, access, device);
  work->directory = directory.is_none() ? "" : path_of(directory);
  work->options.directory = text(work->directory);
  run_cancellable(stop, [work](gpushm_stop* wait_stop) {
    work->options.stop = wait_stop;
    return gpushm_import_memory(
        work->source.data(), work->source.size(), &work->options, &work->segment);
  });
  return to_segment(*work);
}

nb::object import_file(nb::handle path,
                       const string& access,
                       nb::handle device,
                       std::optional<double> timeout,
                       std::shared_ptr<stop_source> stop) {
  auto work = make_importing(path_of(path), access, device);
  work->timeout_ms = to_milliseconds(timeout);
  run_cancellable(stop, [work](gpushm_stop* wait_stop) {
    work->options.stop = wait_stop;
    return gpushm_import_file(text(work->source), &work->options, work->timeout_ms, &work->segment);
  });
  return to_segment(*work);
}

/// gpushm.TicketFile.
struct ticket_file_object {
  closable<gpushm_ticket_file> handle;
};

nb::object write_ticket_file(nb::handle path, const nb::bytes& ticket, std::uint32_t mode) {
  const string out = path_of(path);
  gpushm_ticket_file* made = nullptr;
  call_released([&] {
    return gpushm_ticket_file_create(text(out), ticket.c_str(), ticket.size(), mode, &made);
  });
  return make_object<ticket_file_object>(
      closable<gpushm_ticket_file>(made, gpushm_ticket_file_close));
}

nb::object import_timeline(const nb::bytes& ticket, nb::handle directory) {
  const string where = directory.is_none() ? "" : path_of(directory);
  gpushm_timeline* opened = nullptr;
  call_released(
      [&] { return gpushm_import_timeline(ticket.c_str(), ticket.size(), text(where), &opened); });
  return make_object<timeline_object>(opened);
}

nb::object create_local_timeline() {
  gpushm_timeline* made = nullptr;
  call_released([&] { return gpushm_timeline_create_local(&made); });
  return make_object<timeline_object>(made);
}

}  // namespace

void register_ticket_methods(nb::class_<segment_object>& type) {
  type.def(
      "ticket",
      [](const segment_object& self, const string& socket) {
        auto ticket = with_size<gpushm_ticket>();
        call(self.handle.get("ticket"), [&](gpushm_segment* segment) {
          return gpushm_export_segment(segment, text(socket), &ticket);
        });
        return to_bytes(ticket);
      },
      nb::arg("socket") = "",
      nb::sig("def ticket(self, socket: str = '') -> bytes"),
      "Bytes that :func:`gpushm.import_ticket` of another process opens this published segment "
      "with.\n\n"
      "``socket``: the path by which importers reach the broker's socket; empty: its absolute path "
      "here.\n"
      "Raises gpushm.InvalidArgumentError for a segment without a broker.");
}

void register_ticket_methods(nb::class_<timeline_object>& type) {
  type.def(
      "ticket",
      [](const timeline_object& self, const string& socket) {
        auto ticket = with_size<gpushm_ticket>();
        call(self.handle.get("ticket"), [&](gpushm_timeline* timeline) {
          return gpushm_export_timeline(timeline, text(socket), &ticket);
        });
        return to_bytes(ticket);
      },
      nb::arg("socket") = "",
      nb::sig("def ticket(self, socket: str = '') -> bytes"),
      "Bytes that :func:`gpushm.import_timeline` of another process opens this timeline with.\n\n"
      "``socket``: as in :meth:`Segment.ticket`. Raises gpushm.InvalidArgumentError for a timeline "
      "that\n"
      "belongs to a segment.");
}

void register_tickets(nb::module_& module) {
  nb::class_<ticket_file_object> type(
      module,
      "TicketFile",
      nb::is_final(),
      "A ticket in a file, which is removed when this is closed. A context manager.");
  type.def(
      "close",
      [](ticket_file_object& self) { self.handle.close(); },
      nb::sig("def close(self) -> None"),
      "Remove the file. Again: no effect.");
  def_context_manager(type, "def __enter__(self) -> TicketFile", [](ticket_file_object& self) {
    self.handle.close();
  });
  module.def("export_memory",
             export_memory,
             nb::arg("tensor"),
             nb::kw_only(),
             nb::arg("stream").none() = nb::none(),
             nb::sig("def export_memory(tensor: object, *, stream: int | None = None) -> bytes"),
             "A ticket of memory that needs no broker: of cudaMalloc, by a handle that works in "
             "every PID\n"
             "namespace. Importers get the whole allocation. Keep the tensor until they are done.\n"
             "Raises gpushm.NotExportableError, DriverError.");
  module.def(
      "import_ticket",
      import_ticket,
      nb::arg("ticket"),
      nb::kw_only(),
      nb::arg("access") = "read",
      nb::arg("device").none() = nb::none(),
      nb::arg("directory").none() = nb::none(),
      nb::arg("stop").none() = nb::none(),
      nb::sig(
          "def import_ticket(ticket: bytes, *, access: str = 'read', device: Device | None = None, "
          "directory: str | os.PathLike[str] | None = None, stop: Stop | None = None) -> "
          "Segment"),
      "Map the memory that a ticket describes, through its broker if it names one.\n\n"
      "``access``, ``device``: as :meth:`Client.open`; memory by a handle is always read-write.\n"
      "``directory``: of a socket that the ticket names without a slash.\n"
      "Raises gpushm.InvalidTicketError, UnsupportedVersionError, PeerUnreachableError,\n"
      "PeerDiedError, GoneOrReplacedError, PidCollisionError, DeviceNotVisibleError, and as\n"
      ":meth:`Client.open`.");
  module.def(
      "import_file",
      import_file,
      nb::arg("path"),
      nb::kw_only(),
      nb::arg("access") = "read",
      nb::arg("device").none() = nb::none(),
      nb::arg("timeout").none() = 0.0,
      nb::arg("stop").none() = nb::none(),
      nb::sig(
          "def import_file(path: str | os.PathLike[str], *, access: str = 'read', device: Device | "
          "None = None, timeout: float | None = 0.0, stop: Stop | None = None) -> Segment"),
      "As :func:`import_ticket`, of a file that a live process has written; waits for it at most\n"
      "``timeout`` seconds. Raises gpushm.NoSuchSegmentError, too.");
  module.def(
      "write_ticket_file",
      write_ticket_file,
      nb::arg("path"),
      nb::arg("ticket"),
      nb::kw_only(),
      nb::arg("mode") = 0600,
      nb::sig("def write_ticket_file(path: str | os.PathLike[str], ticket: bytes, *, mode: int = "
              "0o600) -> TicketFile"),
      "Write a ticket for :func:`import_file`. The file is removed when the result is closed, and\n"
      "a reader sees when this process has died. Replaces the file of a dead process.\n"
      "Raises gpushm.AddressInUseError (a live process's file), PermissionDeniedError.");
  module.def(
      "import_timeline",
      import_timeline,
      nb::arg("ticket"),
      nb::kw_only(),
      nb::arg("directory").none() = nb::none(),
      nb::sig("def import_timeline(ticket: bytes, *, directory: str | os.PathLike[str] | None = "
              "None) -> Timeline"),
      "Open the timeline that a ticket describes, to wait for it. ``directory``: as\n"
      ":func:`import_ticket`. Raises gpushm.InvalidTicketError, PeerDiedError, "
      "GoneOrReplacedError,\n"
      "PeerUnreachableError, PermissionDeniedError.");
  module.def(
      "create_local_timeline",
      create_local_timeline,
      nb::sig("def create_local_timeline() -> Timeline"),
      "A timeline that needs no broker, for processes of one container and one user, which import "
      "its\n"
      ":meth:`Timeline.ticket`. Raises gpushm.NotExportableError, TooManyDescriptorsError.");
}

}  // namespace gpushm_python
