// SPDX-License-Identifier: Apache-2.0
#include "segment.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <utility>

#include "buffer.hpp"
#include "copy.hpp"
#include "exchange.hpp"
#include "in_python.hpp"
#include "known_memory.hpp"
#include "status.hpp"
#include "stop.hpp"
#include "stream.hpp"
#include "tensors.hpp"
#include "ticket.hpp"
#include "timeline.hpp"
#include "window.hpp"

namespace gpushm_python {
namespace {

std::string repr(const segment_object& self) {
  if (self.handle.is_closed()) {
    return "<gpushm.Segment, closed>";
  }
  const auto segment = self.handle.get("repr");
  return "<gpushm.Segment \"" + to_string(gpushm_segment_name(segment.get())) + "\", " +
         std::to_string(gpushm_segment_size_bytes(segment.get())) + " bytes, " +
         to_string(gpushm_access_name(gpushm_segment_access(segment.get()))) + ", " +
         to_string(gpushm_segment_state_name(gpushm_segment_current_state(segment.get()))) + ">";
}

nb::bytes metadata(const segment_object& self) {
  const auto segment = self.handle.get("metadata");
  const void* data = nullptr;
  std::size_t size = 0;
  failure::of(gpushm_segment_metadata(segment.get(), &data, &size)).raise_if_any();
  return nb::bytes(data, size);
}

std::string device(const segment_object& self) {
  const auto segment = self.handle.get("device");
  gpushm_device result{};
  failure::of(gpushm_segment_device(segment.get(), &result)).raise_if_any();
  return device_text(result);
}

nb::bytes epoch(const segment_object& self) {
  const auto segment = self.handle.get("epoch");
  gpushm_epoch result{};
  failure::of(gpushm_segment_epoch(segment.get(), &result)).raise_if_any();
  return nb::bytes(result.bytes, sizeof result.bytes);
}

void publish(segment_object& self, const nb::bytes& metadata) {
  const auto of = self.handle.get("publish");
  call(of, [&](gpushm_segment* segment) {
    return gpushm_segment_publish(segment, metadata.data(), metadata.size());
  });
  note_published(of.get(), true);
}

void unshare(segment_object& self) {
  call(self.handle.get("unshare"), gpushm_segment_unshare);
}

gpushm_suspend_mode to_suspend_mode(const std::string& text) {
  for (const gpushm_suspend_mode mode :
       {GPUSHM_SUSPEND_KEEP, GPUSHM_SUSPEND_HOST, GPUSHM_SUSPEND_DISCARD}) {
    if (to_string(gpushm_suspend_mode_name(mode)) == text) {
      return mode;
    }
  }
  throw nb::value_error(R"(contents is "keep", "host" or "discard")");
}

void suspend(segment_object& self, const std::string& contents) {
  call(self.handle.get("suspend"), [wanted = to_suspend_mode(contents)](gpushm_segment* segment) {
    return gpushm_segment_suspend(segment, wanted);
  });
}

void resume(segment_object& self) {
  call(self.handle.get("resume"), gpushm_segment_resume);
}

array view(const segment_object& self,
           nb::handle dtype,
           nb::handle shape,
           std::uint64_t offset,
           nb::handle strides,
           nb::handle ready) {
  return make_array(self.range("view"),
                    dtype,
                    shape,
                    offset,
                    strides,
                    ready.is_none() ? self.ready : to_readiness(ready));
}

std::optional<void*> optional_stream(nb::handle stream) {
  return stream.is_none() ? std::nullopt : std::optional(to_stream(stream));
}

nb::bytes read(const segment_object& self,
               std::uint64_t offset,
               std::optional<std::uint64_t> size,
               nb::handle stream) {
  const auto segment = self.handle.get("read");
  const std::uint64_t size_bytes = gpushm_segment_size_bytes(segment.get());
  const std::uint64_t wanted = size.value_or(offset <= size_bytes ? size_bytes - offset : 0);
  if (offset > size_bytes || wanted > size_bytes - offset) {
    raise(GPUSHM_ERRC_INVALID_ARGUMENT,
          "read",
          to_string(gpushm_segment_name(segment.get())),
          "the range is not within its " + std::to_string(size_bytes) + " bytes",
          "pass an offset and a size that fit");
  }
  std::vector<std::byte> bytes(wanted);
  const auto after = optional_stream(stream);
  call(segment, [&](gpushm_segment* handle) {
    return after ? gpushm_segment_read_on(handle, offset, bytes.data(), bytes.size(), *after)
                 : gpushm_segment_read(handle, offset, bytes.data(), bytes.size());
  });
  return nb::bytes(bytes.data(), bytes.size());
}

void write(segment_object& self, nb::handle data, std::uint64_t offset, nb::handle stream) {
  const auto segment = self.handle.get("write");
  const auto after = optional_stream(stream);
  with_bytes(data, nullptr, after, [&](const source_bytes& bytes) {
    write_bytes(segment, offset, bytes, after);
  });
}

void fill(segment_object& self, std::uint8_t value, nb::handle stream) {
  const auto after = optional_stream(stream);
  call(self.handle.get("fill"), [&](gpushm_segment* segment) {
    return after ? gpushm_segment_fill_on(segment, value, *after)
                 : gpushm_segment_fill(segment, value);
  });
}

nb::list create_timelines(segment_object& self, std::size_t count) {
  const auto segment = self.handle.get("create_timelines");
  std::array<gpushm_timeline*, GPUSHM_MAX_SEGMENT_TIMELINES> made{};
  if (count == 0 || count > made.size()) {
    throw nb::value_error("a segment has 1 to 64 timelines");
  }
  call(self.client.get("create_timelines"), [&](gpushm_client* client) {
    return gpushm_segment_timelines_create(client, segment.get(), count, made.data());
  });
  nb::list result;
  for (std::size_t i = 0; i < count; ++i) {
    result.append(make_object<timeline_object>(made[i]));
  }
  return result;
}

nb::object open_timeline(segment_object& self,
                         std::uint32_t index,
                         std::optional<double> timeout,
                         std::shared_ptr<stop_source> stop) {
  struct state {
    std::shared_ptr<gpushm_segment> segment;
    std::shared_ptr<gpushm_client> client;
    std::shared_ptr<gpushm_timeline> result;
  };
  auto work = std::make_shared<state>();
  work->segment = self.handle.get("open_timeline");
  work->client = self.client.get("open_timeline");
  run_cancellable(
      {stop, self.handle.closing()},
      [work, index, milliseconds = to_milliseconds(timeout)](gpushm_stop* wait_stop) {
        gpushm_timeline* opened = nullptr;
        const gpushm_errc code = gpushm_segment_timeline_open(
            work->client.get(), work->segment.get(), index, milliseconds, wait_stop, &opened);
        if (code == GPUSHM_OK) {
          work->result = own_timeline(opened);
        }
        return code;
      });
  return make_object<timeline_object>(work->result);
}

void close(segment_object& self) {
  self.ready.reset();
  self.handle.close();
  self.client.close();
}

template <typename Result, Result (*Get)(const gpushm_segment*)>
Result value_of(const segment_object& self) {
  return Get(self.handle.get("attribute").get());
}

template <typename Value, Value (*Get)(const gpushm_segment*), gpushm_string (*Name)(Value)>
std::string name_of(const segment_object& self) {
  return to_string(Name(Get(self.handle.get("attribute").get())));
}

}  // namespace

std::shared_ptr<gpushm_segment> own_segment(gpushm_segment* segment,
                                            std::shared_ptr<const void> keep) {
  std::shared_ptr<gpushm_segment> result{segment,
                                         [keep = std::move(keep)](gpushm_segment* last) mutable {
                                           forget_memory(last);
                                           without_gil([&] {  // unmapping can take long
                                             gpushm_segment_close(last);
                                             keep.reset();
                                           });
                                         }};
  remember_memory(result);
  return result;
}

std::string device_text(const gpushm_device& device) {
  return device.kind == GPUSHM_DEVICE_HOST ? "host" : std::string(device.uuid, device.uuid_size);
}

memory_range segment_object::range(const char* operation) const {
  auto segment = handle.get(operation);
  if (gpushm_segment_current_state(segment.get()) == GPUSHM_SEGMENT_SUSPENDED) {
    raise(GPUSHM_ERRC_INVALID_ARGUMENT,
          operation,
          to_string(gpushm_segment_name(segment.get())),
          "the segment is suspended: no memory is mapped at its address",
          "resume it first");
  }
  return range_of(std::move(segment));
}

memory_range range_of(std::shared_ptr<gpushm_segment> segment) {
  memory_range result;
  result.readonly = gpushm_segment_mutable_data(segment.get()) == nullptr;
  result.data = const_cast<void*>(gpushm_segment_data(segment.get()));
  result.bytes = gpushm_segment_size_bytes(segment.get());
  const std::int32_t ordinal = gpushm_segment_ordinal(segment.get());
  result.device =
      ordinal < 0 ? dl::device{dl::device_cpu, 0} : dl::device{dl::device_cuda, ordinal};
  result.name = to_string(gpushm_segment_name(segment.get()));
  result.owner = segment;
  result.segment = std::move(segment);
  return result;
}

segment_object::segment_object(std::shared_ptr<gpushm_segment> segment,
                               std::shared_ptr<gpushm_client> owner)
    : handle(std::move(segment)), client(std::move(owner)) {}

nb::object to_info(const gpushm_segment_info& info) {
  nb::dict fields;
  fields["name"] = nb::str(info.name, info.name_size);
  fields["generation"] = info.generation;
  fields["size"] = info.size_bytes;
  fields["allocated_size"] = info.allocated_bytes;
  fields["metadata_size"] = info.metadata_bytes;
  fields["chunks"] = info.chunks;
  fields["leases"] = info.leases;
  fields["creator_uid"] = info.creator_uid;
  fields["creator_pid"] = info.creator_pid;
  fields["creator_alive"] = info.creator_alive;
  fields["published"] = info.published;
  fields["backend"] = to_string(gpushm_backend_name(info.backend));
  fields["lifetime"] = to_string(gpushm_lifetime_name(info.lifetime));
  fields["state"] = to_string(gpushm_segment_state_name(info.state));
  fields["device"] = device_text(info.device);
  return nb::module_::import_("gpushm._types").attr("SegmentInfo")(**fields);
}

void register_segment(nb::module_& module) {
  nb::class_<segment_object> type(
      module,
      "Segment",
      nb::is_final(),
      nb::type_slots(segment_buffer_slots()),
      "A segment that is mapped into this process, with its lease.\n\n"
      "The mapping and the lease end when this object is closed and all arrays, buffers and "
      "tensors\n"
      "that were made of it are gone. Other libraries take its bytes as they take those of\n"
      ":class:`Array`: ``torch.from_dlpack(segment)``, and of host memory "
      "``memoryview(segment)``.\n"
      "A context manager: closes at the end. May be shared between threads.\n"
      "Attributes and methods raise gpushm.InvalidArgumentError after :meth:`close`.");
  type.def_prop_ro(
          "name",
          [](const segment_object& self) {
            return to_string(gpushm_segment_name(self.handle.get("name").get()));
          },
          nb::sig("def name(self) -> str"),
          "The name, as it was created.")
      .def_prop_ro("size",
                   value_of<std::uint64_t, gpushm_segment_size_bytes>,
                   nb::sig("def size(self) -> int"),
                   "Bytes, as requested at creation.")
      .def_prop_ro("generation",
                   value_of<std::uint64_t, gpushm_segment_generation>,
                   nb::sig("def generation(self) -> int"),
                   "A number that the broker never uses again.")
      .def_prop_ro(
          "epoch",
          epoch,
          nb::sig("def epoch(self) -> bytes"),
          "16 random bytes of the broker: with :attr:`generation` they identify this memory.")
      .def_prop_ro(
          "state",
          name_of<gpushm_segment_state, gpushm_segment_current_state, gpushm_segment_state_name>,
          nb::sig("def state(self) -> str"),
          "``\"live\"``, ``\"removed\"``, ``\"exporter-gone\"``, ``\"broker-gone\"``,\n"
          "``\"unknown\"``, ``\"device-lost\"``: its GPU was lost, and the memory with it, or\n"
          "``\"suspended\"``: this process has unmapped it for a time. In each other state the\n"
          "memory stays valid. Reads shared memory only.")
      .def_prop_ro("device",
                   device,
                   nb::sig("def device(self) -> str"),
                   "``\"host\"``, or the UUID of the GPU or MIG instance where the memory is.")
      .def_prop_ro("ordinal",
                   value_of<std::int32_t, gpushm_segment_ordinal>,
                   nb::sig("def ordinal(self) -> int"),
                   "The GPU that uses the mapping, as CUDA numbers it in this process; -1: host.")
      .def_prop_ro("backend",
                   name_of<gpushm_backend, gpushm_segment_backend, gpushm_backend_name>,
                   nb::sig("def backend(self) -> str"),
                   R"(How the memory is shared, such as ``"host"`` or ``"cuda-vmm"``.)")
      .def_prop_ro("access",
                   name_of<gpushm_access, gpushm_segment_access, gpushm_access_name>,
                   nb::sig("def access(self) -> str"),
                   R"(``"read"`` or ``"read-write"``.)")
      .def_prop_ro(
          "lifetime",
          name_of<gpushm_lifetime, gpushm_segment_lifetime, gpushm_lifetime_name>,
          nb::sig("def lifetime(self) -> str"),
          R"(``"leased"`` (ends with its last lease) or ``"persistent"`` (until removed).)")
      .def_prop_ro("metadata",
                   metadata,
                   nb::sig("def metadata(self) -> bytes"),
                   "What was passed to :meth:`publish`; empty before.")
      .def_prop_ro(
          "closed",
          [](const segment_object& self) { return self.handle.is_closed(); },
          nb::sig("def closed(self) -> bool"),
          "Whether :meth:`close` was called.")
      .def_prop_rw(
          "ready",
          [](const segment_object& self) { return from_readiness(self.ready); },
          [](segment_object& self, nb::handle value) { self.ready = to_readiness(value); },
          nb::for_getter(nb::sig("def ready(self) -> tuple[Timeline, int] | None")),
          nb::for_setter(nb::sig("def ready(self, value: tuple[Timeline, int] | None, /) -> None")),
          nb::arg("value").none(),
          "For what consumers of the arrays that are made from now on wait: a timeline and its "
          "value.")
      .def(
          "view",
          view,
          nb::arg("dtype") = "uint8",
          nb::arg("shape").none() = nb::none(),
          nb::kw_only(),
          nb::arg("offset") = 0,
          nb::arg("strides").none() = nb::none(),
          nb::arg("ready").none() = nb::none(),
          nb::sig("def view(self, dtype: object = 'uint8', shape: int | Sequence[int] | None = "
                  "None, *, "
                  "offset: int = 0, strides: Sequence[int] | None = None, "
                  "ready: tuple[Timeline, int] | None = None) -> Array"),
          "An array on this memory, which keeps it mapped.\n\n"
          "``dtype``: a name such as ``\"bfloat16\"``, or a dtype of NumPy, ml_dtypes or PyTorch.\n"
          "``shape``: elements of each dimension; None: one dimension, to the end of the segment.\n"
          "``offset``: in bytes. ``strides``: in elements, not negative; None: C order.\n"
          "``ready``: a timeline and the value that consumers wait for; None: :attr:`ready`.\n\n"
          "Raises gpushm.SizeMismatchError for elements outside the segment, TypeError, "
          "ValueError.")
      .def("publish",
           publish,
           nb::arg("metadata") = nb::bytes("", 0),
           nb::sig("def publish(self, metadata: bytes = b'') -> None"),
           "Make a created segment visible, with up to 64 KiB of metadata.\n\n"
           "Does not synchronise a stream: finish the writes that readers rely on first, or give "
           "them\n"
           "a timeline. Blocks for one round trip to the broker, at most the client's request "
           "timeout.\n"
           "Raises gpushm.AlreadyPublishedError, MessageTooLargeError, BrokerGoneError, "
           "TimedOutError.")
      .def("unshare",
           unshare,
           nb::sig("def unshare(self) -> None"),
           "End :meth:`Client.share`: new opens fail, existing mappings remain.\n\n"
           "Blocks for one round trip. Raises gpushm.InvalidArgumentError, TimedOutError.")
      .def("suspend",
           suspend,
           nb::arg("contents") = "keep",
           nb::sig("def suspend(self, contents: str = 'keep') -> None"),
           "Unmap the memory, and keep its address until :meth:`resume`.\n\n"
           "For all segments, arrays and tensors of this process that have this mapping: accesses "
           "fail as\n"
           "to unmapped memory (a fault of the process or of the GPU) until then. Finish all work "
           "that uses\n"
           "it first; only work of the legacy default stream is detected. No effect if it is "
           "suspended so\n"
           "already. Blocks for round trips to the broker, and while contents are copied.\n\n"
           "``\"keep\"``: the memory stays with the broker, and with the processes that have it. "
           "``\"host\"``: it is\n"
           "freed, and its contents are copied to host memory of this process. ``\"discard\"``: it "
           "is freed. The\n"
           "last two are for the client that has created the segment, while nobody else has it; "
           "opens of its\n"
           "name wait for the resume.\n"
           "Raises gpushm.NotSupportedError (the backend is neither ``\"host\"`` nor "
           "``\"cuda-vmm\"``), SegmentBusyError,\n"
           "InvalidArgumentError, OutOfMemoryError, NoSuchSegmentError (it was removed), "
           "BrokerGoneError,\n"
           "DriverError, ValueError.")
      .def("resume",
           resume,
           nb::sig("def resume(self) -> None"),
           "Map the memory again, at the same address. After a failure it is suspended as "
           "before.\n\n"
           "After ``suspend(\"host\")`` it is a new segment of the same name, with the same "
           "contents, published\n"
           "if it was; after ``suspend(\"discard\")`` its contents are undefined, and it is not "
           "published.\n"
           "Raises gpushm.InvalidArgumentError (it is not suspended), AlreadyExistsError (the name "
           "is in use),\n"
           "OutOfMemoryError, QuotaExceededError, BrokerGoneError, DriverError, "
           "TooManyDescriptorsError.")
      .def("read",
           read,
           nb::arg("offset") = 0,
           nb::arg("size").none() = nb::none(),
           nb::kw_only(),
           nb::arg("stream").none() = nb::none(),
           nb::sig("def read(self, offset: int = 0, size: int | None = None, *, stream: object = "
                   "None) -> bytes"),
           "A copy of ``size`` bytes from ``offset`` on; None: to the end.\n\n"
           "Blocks until a GPU has copied them, on a stream of the library that waits for no "
           "other. With\n"
           "``stream``, after the work that is enqueued on it, for which it blocks, too.\n"
           "Raises gpushm.InvalidArgumentError, DriverError.")
      .def("write",
           write,
           nb::arg("data"),
           nb::arg("offset") = 0,
           nb::kw_only(),
           nb::arg("stream").none() = nb::none(),
           nb::sig("def write(self, data: object, offset: int = 0, *, stream: object = None) -> "
                   "None"),
           "Copy contiguous memory of the host or of any GPU (the buffer protocol or "
           "``__dlpack__``)\n"
           "into the segment.\n\n"
           "Blocks until a GPU has copied it; memory of a GPU is copied after the legacy default "
           "stream,\n"
           "or after ``stream``, for which the call blocks, too. Other data has no order against "
           "streams\n"
           "without ``stream``.\n"
           "Raises gpushm.InvalidArgumentError (outside the segment, or mapped for reading only),\n"
           "DriverError, TypeError, ValueError.")
      .def("fill",
           fill,
           nb::arg("value"),
           nb::kw_only(),
           nb::arg("stream").none() = nb::none(),
           nb::sig("def fill(self, value: int, *, stream: object = None) -> None"),
           "Set every byte. Blocks until a GPU has done so; ``stream`` as in :meth:`read`.\n"
           "Raises as :meth:`write`.")
      .def("create_timelines",
           create_timelines,
           nb::arg("count"),
           nb::sig("def create_timelines(self, count: int) -> list[Timeline]"),
           "Create the 1 to 64 timelines that belong to this segment; this process has created it, "
           "and\n"
           "signals them. Blocks for round trips to the broker.\n"
           "Raises gpushm.AlreadyExistsError, InvalidArgumentError.")
      .def("open_timeline",
           open_timeline,
           nb::arg("index"),
           nb::kw_only(),
           nb::arg("timeout").none() = 0.0,
           nb::arg("stop").none() = nb::none(),
           nb::sig("def open_timeline(self, index: int, *, timeout: float | None = 0.0, stop: Stop "
                   "| None "
                   "= None) -> Timeline"),
           "Open timeline ``index`` of this segment. Blocks until its creator has created it, at "
           "most\n"
           "``timeout`` seconds. Raises gpushm.NoSuchSegmentError, InvalidArgumentError, "
           "CancelledError.")
      .def("close",
           close,
           nb::sig("def close(self) -> None"),
           "Give up this handle. Again: no effect. Does not wait for GPU work that uses the "
           "memory:\n"
           "synchronise first.")
      .def("__len__",
           value_of<std::uint64_t, gpushm_segment_size_bytes>,
           nb::sig("def __len__(self) -> int"))
      .def("__repr__", repr, nb::sig("def __repr__(self) -> str"))
      .def(
          "_repr_html_",
          [](nb::handle self) { return in_python("gpushm._html", "of_segment", self); },
          nb::sig("def _repr_html_(self) -> str"),
          "For notebooks.");
  def_context_manager(type, "def __enter__(self) -> Segment", close);
  def_exchange(
      type, [](const segment_object& self) { return self.bytes("__dlpack__"); }, docs_of_bytes);
  register_tensors_methods(type);
  register_ticket_methods(type);
  register_window_methods(type);
}

}  // namespace gpushm_python
