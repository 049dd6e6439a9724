// SPDX-License-Identifier: Apache-2.0
#include "client.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "channel.hpp"
#include "device.hpp"
#include "in_python.hpp"
#include "known_memory.hpp"
#include "segment.hpp"
#include "status.hpp"
#include "stop.hpp"
#include "subscription.hpp"
#include "tensors.hpp"
#include "timeline.hpp"

namespace gpushm_python {
namespace {

using std::string;

nb::object connect(nb::handle socket,
                   std::optional<double> timeout,
                   std::optional<double> request_limit,
                   std::optional<std::uint64_t> cache_bytes,
                   std::optional<std::uint64_t> cache_entries,
                   std::vector<string> prefetch,
                   std::shared_ptr<stop_source> stop,
                   bool start) {
  if (start) {
    nb::dict options;
    options["request_limit"] = request_limit;
    options["cache_bytes"] = cache_bytes;
    options["cache_entries"] = cache_entries;
    options["prefetch"] = nb::cast(prefetch);
    options["stop"] = nb::cast(stop);
    return nb::module_::import_("gpushm._start").attr("connect")(socket, timeout, **options);
  }
  struct state {
    string socket;
    std::vector<string> prefetch;
    std::vector<gpushm_string> names;
    gpushm_connect_options options = with_size<gpushm_connect_options>();
    std::int64_t timeout_ms = 0;
    gpushm_client* client = nullptr;
    state() = default;
    state(const state&) = delete;
    state& operator=(const state&) = delete;
    ~state() { gpushm_client_close(client); }
  };
  auto work = std::make_shared<state>();
  if (!socket.is_none()) {
    work->socket = nb::cast<string>(nb::module_::import_("os").attr("fspath")(socket));
  }
  work->options.socket_path = text(work->socket);
  work->timeout_ms = to_milliseconds(timeout);
  work->options.request_limit_ms = to_milliseconds(request_limit, "request_limit");
  if (work->options.request_limit_ms == 0) {
    throw nb::value_error("request_limit is 0; give seconds, or None for no limit");
  }
  work->options.has_cache_max_bytes = cache_bytes.has_value();
  work->options.cache_max_bytes = cache_bytes.value_or(0);
  work->options.has_cache_max_entries = cache_entries.has_value();
  work->options.cache_max_entries = cache_entries.value_or(0);
  work->prefetch = std::move(prefetch);
  for (const string& name : work->prefetch) {
    work->names.push_back(text(name));
  }
  work->options.prefetch = work->names.data();
  work->options.prefetch_count = work->names.size();
  in_python("gpushm._log", "begin");
  run_cancellable(stop, [work](gpushm_stop* wait_stop) {
    work->options.stop = wait_stop;
    return gpushm_client_connect(&work->options, work->timeout_ms, &work->client);
  });
  return make_client(std::exchange(work->client, nullptr));
}

nb::object create(client_object& self,
                  const string& name,
                  std::uint64_t size,
                  nb::handle where,
                  const string& lifetime,
                  std::uint64_t chunk_size,
                  bool huge_pages,
                  std::uint64_t replaces) {
  const string device = to_device(where);
  auto options = with_size<gpushm_create_options>();
  options.size_bytes = size;
  options.device = text(device);
  options.lifetime = to_lifetime(lifetime);
  options.chunk_bytes = chunk_size;
  options.huge_pages = huge_pages;
  options.replaces = replaces;
  gpushm_segment* created = nullptr;
  const auto client = self.handle.get("create");
  call(client, [&](gpushm_client* handle) {
    return gpushm_client_create(handle, text(name), &options, &created);
  });
  auto segment = own_segment(created);
  note_published(created, false);
  return make_object<segment_object>(std::move(segment), client);
}

nb::list list(client_object& self, const string& prefix) {
  gpushm_segment_list* raw = nullptr;
  call(self.handle.get("list"),
       [&](gpushm_client* client) { return gpushm_client_list(client, text(prefix), &raw); });
  return to_infos(raw);
}

nb::object stat(client_object& self, const string& name, std::optional<std::uint64_t> generation) {
  auto info = with_size<gpushm_segment_info>();
  call(self.handle.get("stat"), [&](gpushm_client* client) {
    return generation ? gpushm_client_stat_generation(client, text(name), *generation, &info)
                      : gpushm_client_stat(client, text(name), &info);
  });
  return to_info(info);
}

void remove(client_object& self, const string& name, std::optional<std::uint64_t> generation) {
  call(self.handle.get("remove"), [&](gpushm_client* client) {
    return generation ? gpushm_client_remove_generation(client, text(name), *generation)
                      : gpushm_client_remove(client, text(name));
  });
}

std::size_t prefetch(client_object& self, const string& prefix) {
  std::size_t count = 0;
  call(self.handle.get("prefetch"),
       [&](gpushm_client* client) { return gpushm_client_prefetch(client, text(prefix), &count); });
  return count;
}

nb::object broker(client_object& self) {
  auto info = with_size<gpushm_broker_info>();
  call(self.handle.get("broker"),
       [&](gpushm_client* client) { return gpushm_client_broker(client, &info); });
  nb::dict fields;
  fields["socket"] = nb::str(info.socket_path, info.socket_path_size);
  fields["domain"] = nb::str(info.domain, info.domain_size);
  fields["pid"] = info.pid;
  fields["epoch"] = nb::bytes(info.epoch.bytes, sizeof info.epoch.bytes);
  fields["max_segments"] = info.max_segments;
  fields["quota_bytes"] = info.quota_bytes;
  fields["protocol_version"] = info.protocol_version;
  return nb::module_::import_("gpushm._types").attr("BrokerInfo")(**fields);
}

nb::object create_timeline(client_object& self, const string& name) {
  gpushm_timeline* made = nullptr;
  call(self.handle.get("create_timeline"),
       [&](gpushm_client* client) { return gpushm_timeline_create(client, text(name), &made); });
  return make_object<timeline_object>(made);
}

nb::object open_timeline(client_object& self,
                         const string& name,
                         std::optional<double> timeout,
                         std::shared_ptr<stop_source> stop) {
  struct state {
    std::shared_ptr<gpushm_client> client;
    string name;
    std::shared_ptr<gpushm_timeline> result;
  };
  auto work = std::make_shared<state>();
  work->client = self.handle.get("open_timeline");
  work->name = name;
  run_cancellable({stop, self.handle.closing()},
                  [work, milliseconds = to_milliseconds(timeout)](gpushm_stop* wait_stop) {
                    gpushm_timeline* opened = nullptr;
                    const gpushm_errc code = gpushm_timeline_open(
                        work->client.get(), text(work->name), milliseconds, wait_stop, &opened);
                    if (code == GPUSHM_OK) {
                      work->result = own_timeline(opened);
                    }
                    return code;
                  });
  return make_object<timeline_object>(work->result);
}

nb::object subscribe(client_object& self, const string& prefix) {
  return make_subscription(self.handle.get("subscribe"), prefix);
}

}  // namespace

nb::object make_client(gpushm_client* client) {
  nb::object made = make_object<client_object>(client);
  auto info = with_size<gpushm_broker_info>();
  call_released([&] { return gpushm_client_broker(client, &info); });
  auto& members = *nb::inst_ptr<client_object>(made);
  members.socket.assign(info.socket_path, info.socket_path_size);
  members.domain.assign(info.domain, info.domain_size);
  return made;
}

gpushm_lifetime to_lifetime(const string& text) {
  if (text == "leased") {
    return GPUSHM_LIFETIME_LEASED;
  }
  if (text == "persistent") {
    return GPUSHM_LIFETIME_PERSISTENT;
  }
  throw nb::value_error(R"(lifetime is "leased" or "persistent")");
}

void register_client(nb::module_& module) {
  nb::class_<client_object> type(
      module,
      "Client",
      nb::is_final(),
      "A connection to a broker. Made by :func:`gpushm.connect`.\n\n"
      "Segments and timelines stay usable after it is closed. When the broker dies, requests in "
      "flight\n"
      "fail with :class:`gpushm.BrokerGoneError`, and the next request connects to its successor.\n"
      "A context manager: closes at the end. May be shared between threads.\n"
      "Methods block for round trips to the broker, each at most the request timeout, and raise\n"
      "BrokerUnreachableError, BrokerGoneError, TimedOutError and ForkedError besides those they "
      "name.");
  type.def(
      "create",
      create,
      nb::arg("name"),
      nb::arg("size"),
      nb::kw_only(),
      nb::arg("device") = "auto",
      nb::arg("lifetime") = "leased",
      nb::arg("chunk_size") = 0,
      nb::arg("huge_pages") = false,
      nb::arg("replaces") = 0,
      nb::sig("def create(self, name: str, size: int, *, device: Device = 'auto', lifetime: str "
              "= 'leased', "
              "chunk_size: int = 0, huge_pages: bool = False, replaces: int = 0) -> Segment"),
      "Create a segment of ``size`` bytes that only this client sees before\n"
      ":meth:`Segment.publish`. Contents are zero on the host, and undefined on GPUs.\n\n"
      "``device``: an ordinal as CUDA numbers it (``1``, ``\"cuda:1\"``), a UUID, ``\"host\"`` or "
      "``\"cpu\"``,\n"
      "a device of PyTorch, JAX, CuPy or cuda.core, or ``\"auto\"``: the first visible GPU, "
      "else\n"
      "the host, with a warning. ``lifetime``: ``\"leased\"`` (freed with its last lease) "
      "or\n"
      "``\"persistent\"`` (until removed). ``chunk_size``: bytes of one physical allocation; "
      "0: a\n"
      "single one. ``huge_pages``: 2 MiB pages, host only. ``replaces``: the generation of a\n"
      "segment that has the name, and that this process may remove. It keeps the name until "
      "the\n"
      "new segment is published, which moves the name at once: a process that opens the name\n"
      "finds one of the two.\n\n"
      "Raises gpushm.AlreadyExistsError, QuotaExceededError, OutOfMemoryError,\n"
      "DeviceNotFoundError, DriverUnavailableError, InvalidArgumentError, and with "
      "``replaces``\n"
      "GoneOrReplacedError (another segment has the name) and PermissionDeniedError.");
  register_open_methods(type);
  register_share_methods(type);
  register_version_methods(type);
  type.def("list",
           list,
           nb::arg("prefix") = "",
           nb::sig("def list(self, prefix: str = '') -> list[SegmentInfo]"),
           "Published segments, and this client's unpublished ones, whose names begin with "
           "``prefix``,\n"
           "sorted by name.")
      .def("stat",
           stat,
           nb::arg("name"),
           nb::kw_only(),
           nb::arg("generation").none() = nb::none(),
           nb::sig("def stat(self, name: str, *, generation: int | None = None) -> SegmentInfo"),
           "What the broker knows about a segment. Raises gpushm.NoSuchSegmentError; with\n"
           "``generation``, GoneOrReplacedError if another segment has the name now.")
      .def("remove",
           remove,
           nb::arg("name"),
           nb::kw_only(),
           nb::arg("generation").none() = nb::none(),
           nb::sig("def remove(self, name: str, *, generation: int | None = None) -> None"),
           "Remove the name; the memory is freed with the last lease. With ``generation``, only if "
           "it has\n"
           "the name: never a segment that has replaced it.\n"
           "Raises gpushm.NoSuchSegmentError, PermissionDeniedError, GoneOrReplacedError (another\n"
           "segment has the name now).")
      .def("prefetch",
           prefetch,
           nb::arg("prefix"),
           nb::sig("def prefetch(self, prefix: str) -> int"),
           "Request in advance what opens of persistent segments under ``prefix`` need; returns "
           "how many.")
      .def("broker",
           broker,
           nb::sig("def broker(self) -> BrokerInfo"),
           "What the broker says about itself. Connects again if it has died.")
      .def("create_timeline",
           create_timeline,
           nb::arg("name"),
           nb::sig("def create_timeline(self, name: str) -> Timeline"),
           "Create and publish a timeline with the value 0. Raises gpushm.AlreadyExistsError.")
      .def("open_timeline",
           open_timeline,
           nb::arg("name"),
           nb::kw_only(),
           nb::arg("timeout").none() = 0.0,
           nb::arg("stop").none() = nb::none(),
           nb::sig("def open_timeline(self, name: str, *, timeout: float | None = 0.0, stop: Stop "
                   "| None = None) -> "
                   "Timeline"),
           "Open a timeline. Blocks until it is published, at most ``timeout`` seconds.\n"
           "Raises gpushm.NoSuchSegmentError, CancelledError.")
      .def("subscribe",
           subscribe,
           nb::arg("prefix") = "",
           nb::sig("def subscribe(self, prefix: str = '') -> Subscription"),
           "Events of segments whose names begin with ``prefix``, from now on.")
      .def(
          "subscribe_async",
          [](nb::handle self, const string& prefix) {
            return aio("client_subscribe", self, prefix);
          },
          nb::arg("prefix") = "",
          nb::sig("def subscribe_async(self, prefix: str = '') -> Coroutine[Any, Any, "
                  "Subscription]"),
          "As :meth:`subscribe`, for asyncio: does not block the event loop for the request.")
      .def(
          "trim",
          [](client_object& self) { call(self.handle.get("trim"), gpushm_client_trim); },
          nb::sig("def trim(self) -> None"),
          "Unmap what the import cache keeps and nothing uses.")
      .def(
          "close",
          [](client_object& self) { self.handle.close(); },
          nb::sig("def close(self) -> None"),
          "End the connection when the last segment that uses it is closed. Again: no effect.")
      .def_prop_ro(
          "socket",
          [](const client_object& self) { return self.socket; },
          nb::sig("def socket(self) -> str"),
          "The path of the broker's socket.")
      .def_prop_ro(
          "domain",
          [](const client_object& self) { return self.domain; },
          nb::sig("def domain(self) -> str"),
          "The domain whose segments it sees.")
      .def_prop_ro(
          "closed",
          [](const client_object& self) { return self.handle.is_closed(); },
          nb::sig("def closed(self) -> bool"),
          "Whether :meth:`close` was called.")
      .def(
          "__repr__",
          [](const client_object& self) -> string {
            return "<gpushm.Client of domain \"" + self.domain + "\" at \"" + self.socket + '"' +
                   (self.handle.is_closed() ? ", closed>" : ">");
          },
          nb::sig("def __repr__(self) -> str"));
  def_context_manager(
      type, "def __enter__(self) -> Client", [](client_object& self) { self.handle.close(); });
  register_channel_methods(type);
  register_status_methods(type);
  register_tensors_methods(type);
  module.def(
      "connect",
      connect,
      nb::arg("socket").none() = nb::none(),
      nb::kw_only(),
      nb::arg("timeout").none() = 0.0,
      nb::arg("request_limit").none() = 30.0,
      nb::arg("cache_bytes").none() = nb::none(),
      nb::arg("cache_entries").none() = nb::none(),
      nb::arg("prefetch") = nb::make_tuple(),
      nb::arg("stop").none() = nb::none(),
      nb::arg("start") = false,
      nb::sig("def connect(socket: str | os.PathLike[str] | None = None, *, timeout: float "
              "| None = 0.0, "
              "request_limit: float | None = 30.0, cache_bytes: int | None = None, "
              "cache_entries: int | None = "
              "None, prefetch: Sequence[str] = (), stop: Stop | None = None, start: bool = False) "
              "-> Client"),
      "Connect to a broker.\n\n"
      "``socket``: its path; None: ``$GPUSHM_SOCKET``, else the one domain under "
      "``/run/gpushm/d``, else\n"
      "the broker of this user, in ``$XDG_RUNTIME_DIR/gpushm`` (docs/cli.md, Broker selection).\n"
      "``timeout``: seconds to wait for a broker that is not running yet; 0: do not wait, None: no "
      "limit.\n"
      "``request_limit``: seconds for each request. ``cache_bytes``, ``cache_entries``: limits of "
      "the import\n"
      "cache; None: from the environment, else 64 GiB and 256. ``prefetch``: names that the caller "
      "is about to\n"
      "open, which are requested together with the connection: opening them then only maps them. "
      "Until it is\n"
      "opened and closed, or until :meth:`Client.trim`, each is a lease. Names that are not "
      "published yet are\n"
      "left out. ``start``: if no broker answers, start one in the background, ``gpushm serve "
      "--detach\n"
      "--idle-exit 60s``: it exits a minute after its last client, unless it has segments. "
      "Processes that do\n"
      "this at once get the same one. Blocks until it is ready, at most ``timeout``, or 20 "
      "seconds.\n\n"
      "Raises gpushm.BrokerUnreachableError, SystemCallError (a broker cannot be started),\n"
      "AmbiguousDomainError, PermissionDeniedError, UnsupportedVersionError, InvalidArgumentError "
      "(a name),\n"
      "TimedOutError, CancelledError.");
  module.def(
      "connect_async",
      [](nb::handle socket, const nb::kwargs& options) {
        return nb::module_::import_("gpushm._aio").attr("connect")(socket, **options);
      },
      nb::arg("socket").none() = nb::none(),
      nb::arg("options"),
      nb::sig(
          "def connect_async(socket: str | os.PathLike[str] | None = None, *, timeout: float | "
          "None = 0.0, request_limit: float | None = 30.0, cache_bytes: int | None = None, "
          "cache_entries: int | None = None, prefetch: Sequence[str] = (), start: bool = False) -> "
          "Coroutine[Any, "
          "Any, Client]"),
      "As :func:`connect`, for asyncio. Cancelling the task ends the wait.");
}

}  // namespace gpushm_python
