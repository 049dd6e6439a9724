// SPDX-License-Identifier: Apache-2.0
#include "broker.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "client.hpp"
#include "gpushm/broker.h"
#include "handle.hpp"
#include "segment.hpp"
#include "turn.hpp"

namespace gpushm_python {
namespace {

using std::string;

/// A new directory for the socket of a broker that is given none; removed with this object, unless
/// this is a forked child, to which it does not belong.
class private_directory {
 public:
  private_directory()
      : path_(nb::cast<string>(nb::module_::import_("gpushm._private").attr("new_directory")())) {}
  private_directory(const private_directory&) = delete;
  private_directory& operator=(const private_directory&) = delete;
  private_directory(private_directory&&) = delete;
  private_directory& operator=(private_directory&&) = delete;
  ~private_directory() {
    if (::getpid() == owner_) {
      ::rmdir(path_.c_str());  // a broker removes its files when it ends
    }
  }

  [[nodiscard]] string socket() const { return path_ + "/socket"; }

 private:
  string path_;
  pid_t owner_ = ::getpid();
};

/// gpushm.Broker. Stopping joins the broker's thread, which needs no GIL: its log lines are queued.
struct broker_object {
  closable<gpushm_broker> handle;
};

template <typename Value>
struct limit_name {
  const char* name;
  Value gpushm_broker_limits::*member;
};

constexpr std::array<limit_name<std::uint32_t>, 8> counts{
    {{"max_segments", &gpushm_broker_limits::max_segments},
     {"max_connections", &gpushm_broker_limits::max_connections},
     {"max_pending_opens", &gpushm_broker_limits::max_pending_opens},
     {"reserved_descriptors", &gpushm_broker_limits::reserved_descriptors},
     {"hello_timeout_ms", &gpushm_broker_limits::hello_timeout_ms},
     {"send_timeout_ms", &gpushm_broker_limits::send_timeout_ms},
     {"max_inflight_descriptors", &gpushm_broker_limits::max_inflight_descriptors},
     {"fence_delay_ms", &gpushm_broker_limits::fence_delay_ms}}};

constexpr std::array<limit_name<std::uint64_t>, 4> amounts{
    {{"quota_bytes", &gpushm_broker_limits::quota_bytes},
     {"quota_bytes_per_principal", &gpushm_broker_limits::quota_bytes_per_principal},
     {"memory_bytes", &gpushm_broker_limits::memory_bytes},
     {"max_descriptors", &gpushm_broker_limits::max_descriptors}}};

template <typename Value>
Value to_number(const string& name, nb::handle value) {
  Value result{};
  if (!nb::try_cast(value, result)) {
    throw nb::value_error((name + " is a number of " + std::to_string(8 * sizeof(Value)) +
                           " bits that is not negative")
                              .c_str());
  }
  return result;
}

/// Raises TypeError for an unknown name, ValueError.
void set_limit(gpushm_broker_limits& limits, const string& name, nb::handle value) {
  for (const auto& each : counts) {
    if (name == each.name) {
      limits.*each.member = to_number<std::uint32_t>(name, value);
      return;
    }
  }
  for (const auto& each : amounts) {
    if (name == each.name) {
      limits.*each.member = to_number<std::uint64_t>(name, value);
      return;
    }
  }
  throw nb::type_error(("a broker has no limit " + name).c_str());
}

void start(broker_object* self,
           nb::handle socket,
           const string& domain,
           nb::handle lock,
           std::uint32_t mode,
           std::optional<std::uint32_t> group,
           bool accept_fake_chunks,
           const nb::kwargs& given) {
  std::shared_ptr<private_directory> directory;
  if (socket.is_none()) {
    directory = std::make_shared<private_directory>();
  }
  const string socket_path = directory ? directory->socket() : path_of(socket);
  const string lock_path = lock.is_none() ? "" : path_of(lock);
  auto limits = with_size<gpushm_broker_limits>();
  failure::of(gpushm_broker_limits_default(&limits)).raise_if_any();
  for (const auto& [name, value] : given) {
    set_limit(limits, nb::cast<string>(name), value);
  }
  auto options = with_size<gpushm_broker_options>();
  options.socket_path = text(socket_path);
  options.lock_path = text(lock_path);
  options.domain = text(domain);
  options.limits = &limits;
  options.mode = mode;
  options.group = group.value_or(0);
  options.has_group = group.has_value();
  options.accept_fake_chunks = accept_fake_chunks;
  gpushm_broker* made = nullptr;
  call_released([&] { return gpushm_broker_start(&options, &made); });
  const auto stop = [directory](gpushm_broker* last) {
    without_gil([&] { gpushm_broker_stop(last); });
  };
  new (self) broker_object{closable<gpushm_broker>(std::shared_ptr<gpushm_broker>(made, stop))};
}

string socket_path(const broker_object& self) {
  const auto handle = self.handle.get("socket");
  gpushm_string path{};
  failure::of(gpushm_broker_socket_path(handle.get(), &path)).raise_if_any();
  return to_string(path);
}

nb::bytes epoch(const broker_object& self) {
  gpushm_epoch result{};
  failure::of(gpushm_broker_epoch(self.handle.get("epoch").get(), &result)).raise_if_any();
  return nb::bytes(result.bytes, sizeof result.bytes);
}

nb::object statistics(const broker_object& self) {
  auto now = with_size<gpushm_broker_statistics>();
  failure::of(gpushm_broker_get_statistics(self.handle.get("statistics").get(), &now))
      .raise_if_any();
  nb::dict fields;
  fields["segments"] = now.segments;
  fields["allocated_bytes"] = now.allocated_bytes;
  fields["leases"] = now.leases;
  fields["connections"] = now.connections;
  fields["ending_connections"] = now.ending_connections;
  fields["unfenced"] = now.unfenced;
  fields["waiting_opens"] = now.waiting_opens;
  fields["opens"] = now.opens;
  fields["cached_opens"] = now.cached_opens;
  nb::dict failures;
  for (int code = 0; code < GPUSHM_ERRC_LIMIT; ++code) {
    if (now.open_failures[code] != 0) {
      const gpushm_string name = gpushm_errc_name(static_cast<gpushm_errc>(code));
      failures[nb::str(name.data, name.size)] = now.open_failures[code];
    }
  }
  fields["open_failures"] = failures;
  nb::list latency;
  for (const std::uint64_t each : now.open_latency) {
    latency.append(each);
  }
  fields["open_latency"] = nb::tuple(latency);
  fields["open_latency_sum_ns"] = now.open_latency_sum_ns;
  return nb::module_::import_("gpushm._types").attr("BrokerStatistics")(**fields);
}

/// gpushm.FileExport.
struct export_object {
  closable<gpushm_file_export> handle;
  nb::object client;  ///< a gpushm.Client of its own
  string path;
  std::shared_ptr<turn> writes = std::make_shared<turn>();  ///< the handle allows one at a time

  [[nodiscard]] client_object& member() const { return *nb::inst_ptr<client_object>(client); }
  /// The client first, while its broker still runs.
  void close() {
    member().handle.close();
    handle.close();
  }
};

void begin(export_object* self,
           nb::handle path,
           std::uint32_t file_mode,
           std::uint32_t socket_mode,
           bool accept_fake_chunks) {
  const string where = path_of(path);
  auto options = with_size<gpushm_file_export_options>();
  options.file_mode = file_mode;
  options.socket_mode = socket_mode;
  options.accept_fake_chunks = accept_fake_chunks;
  gpushm_file_export* made = nullptr;
  call_released([&] { return gpushm_file_export_begin(text(where), &options, &made); });
  closable<gpushm_file_export> owned(made, gpushm_file_export_end);
  gpushm_client* client = nullptr;
  call_released([&] { return gpushm_client_dup(gpushm_file_export_client(made), &client); });
  new (self) export_object{std::move(owned), make_client(client), where};
}

void write(export_object& self, const segment_object& object) {
  const std::shared_ptr<gpushm_segment> segment = object.handle.get("write");
  const std::shared_ptr<turn> writes = self.writes;
  call(self.handle.get("write"), [&](gpushm_file_export* file_export) {
    const call_stop never{stops(nullptr)};
    static_cast<void>(writes->begin(GPUSHM_FOREVER, never));
    const gpushm_errc code = gpushm_file_export_write(file_export, segment.get());
    writes->end();
    return code;
  });
}

void register_statistics(nb::class_<broker_object>& type) {
  type.def("statistics",
           statistics,
           nb::sig("def statistics(self) -> BrokerStatistics"),
           "Its contents, and counters since its start. Does not block; not a consistent "
           "snapshot.\n"
           "Raises gpushm.ForkedError in a child of the process that has started it.");
}

}  // namespace

void register_broker(nb::module_& module) {
  nb::class_<broker_object> broker(
      module,
      "Broker",
      nb::is_final(),
      "A broker in this process, on a thread of the library that needs no GIL. Ends when it is "
      "closed or\n"
      "dropped, which frees persistent segments; a context manager. A child that is forked is not "
      "the\n"
      "broker: it gets gpushm.ForkedError, and ends nothing. May be shared between threads.");
  broker
      .def("__init__",
           start,
           nb::arg("socket").none() = nb::none(),
           nb::kw_only(),
           nb::arg("domain") = "default",
           nb::arg("lock").none() = nb::none(),
           nb::arg("mode") = 0660,
           nb::arg("group").none() = nb::none(),
           nb::arg("accept_fake_chunks") = false,
           nb::arg("limits"),
           nb::sig("def __init__(self, socket: str | os.PathLike[str] | None = None, *, domain: "
                   "str = 'default', lock: str | os.PathLike[str] | None = None, mode: int = "
                   "0o660, group: int | None = None, accept_fake_chunks: bool = False, **limits: "
                   "int) -> None"),
           "``socket``: its path; None: one of its own, in a new directory that only this user can "
           "reach,\n"
           "below ``$XDG_RUNTIME_DIR`` or the temporary directory. ``lock``: the file whose lock "
           "keeps other\n"
           "brokers off the socket; None: ``<socket>.lock``. ``mode``, ``group``: of the socket.\n"
           "``accept_fake_chunks``: for the fake driver of tests. ``limits``: by their names in\n"
           "``gpushm_broker_limits`` (broker.h), such as ``quota_bytes`` and ``max_segments``.\n\n"
           "Blocks until clients can connect. Raises gpushm.AddressInUseError, "
           "PermissionDeniedError,\n"
           "InvalidArgumentError, TypeError for an unknown limit, ValueError.")
      .def_prop_ro("socket",
                   socket_path,
                   nb::sig("def socket(self) -> str"),
                   "The path of the socket, for :func:`gpushm.connect`.")
      .def_prop_ro("epoch",
                   epoch,
                   nb::sig("def epoch(self) -> bytes"),
                   "16 random bytes, others for each broker.")
      .def_prop_ro(
          "closed",
          [](const broker_object& self) { return self.handle.is_closed(); },
          nb::sig("def closed(self) -> bool"),
          "Whether :meth:`close` was called.");
  register_statistics(broker);
  broker
      .def(
          "close",
          [](broker_object& self) { self.handle.close(); },
          nb::sig("def close(self) -> None"),
          "Stop it, and wait until its thread has ended. Again: no effect.")
      .def(
          "__repr__",
          [](const broker_object& self) -> string {
            return self.handle.is_closed() ? "<gpushm.Broker, closed>" : "<gpushm.Broker>";
          },
          nb::sig("def __repr__(self) -> str"));
  def_context_manager(
      broker, "def __enter__(self) -> Broker", [](broker_object& self) { self.handle.close(); });

  nb::class_<export_object> exported(
      module,
      "FileExport",
      nb::is_final(),
      "Sharing through a directory that two containers both have mounted, and nothing else: a "
      "broker in\n"
      "this process on the socket ``PATH.sock``, and a file at PATH for "
      ":func:`gpushm.import_file`.\n"
      "Ends when it is closed or dropped; a context manager. In a forked child it belongs to the\n"
      "parent. May be shared between threads.");
  exported
      .def("__init__",
           begin,
           nb::arg("path"),
           nb::kw_only(),
           nb::arg("file_mode") = 0644,
           nb::arg("socket_mode") = 0666,
           nb::arg("accept_fake_chunks") = false,
           nb::sig("def __init__(self, path: str | os.PathLike[str], *, file_mode: int = 0o644, "
                   "socket_mode: int = 0o666, accept_fake_chunks: bool = False) -> None"),
           "Start the broker; :meth:`write` writes the file. ``accept_fake_chunks``: as "
           ":class:`Broker`.\n\n"
           "Blocks until clients can connect. Raises gpushm.AddressInUseError (a live "
           "exporter's),\n"
           "PermissionDeniedError, InvalidArgumentError (a path too long for a socket's address).")
      .def_prop_ro(
          "path",
          [](const export_object& self) { return self.path; },
          nb::sig("def path(self) -> str"),
          "Of the file.")
      .def_prop_ro(
          "client",
          [](const export_object& self) { return self.client; },
          nb::sig("def client(self) -> Client"),
          "Connected to this export's broker. Closed with this object.")
      .def("write",
           write,
           nb::arg("segment"),
           nb::sig("def write(self, segment: Segment) -> None"),
           "Write the file, or replace it: it describes ``segment``, a published one of "
           ":attr:`client`.\n"
           "Raises gpushm.InvalidArgumentError, AddressInUseError, PermissionDeniedError.")
      .def_prop_ro(
          "closed",
          [](const export_object& self) { return self.handle.is_closed(); },
          nb::sig("def closed(self) -> bool"),
          "Whether :meth:`close` was called.")
      .def(
          "close",
          [](export_object& self) { self.close(); },
          nb::sig("def close(self) -> None"),
          "Remove the file and end the broker; its segments stay mapped where they are. Again: "
          "no effect.");
  def_context_manager(
      exported, "def __enter__(self) -> FileExport", [](export_object& self) { self.close(); });
}

}  // namespace gpushm_python
