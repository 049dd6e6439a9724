// SPDX-License-Identifier: Apache-2.0
#include "channel.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "array.hpp"
#include "gpushm/channel.h"
#include "in_python.hpp"
#include "segment.hpp"
#include "stop.hpp"
#include "stream.hpp"

namespace gpushm_python {
namespace {

using std::string;

struct producer_object {
  closable<gpushm_producer> handle;
  string name;
  memory_range memory;  ///< of the channel
};

struct consumer_object {
  closable<gpushm_consumer> handle;
  string name;
  memory_range memory;
};

/// A slot that a producer fills, or an item that a consumer reads. Keeps the Python object of its
/// producer or consumer.
template <typename Member, typename Part>
struct part_object {
  nb::object member;
  Part part{};
  bool is_open = true;

  [[nodiscard]] Member& of() const { return nb::cast<Member&>(member); }
  [[nodiscard]] array view(nb::handle dtype, nb::handle shape, std::uint64_t offset) const {
    if (!is_open) {
      raise(GPUSHM_ERRC_INVALID_ARGUMENT,
            "view",
            of().name,
            "the slot was given back",
            "make arrays before it is published or released, and use them no longer than that");
    }
    memory_range range = of().memory;
    range.data = const_cast<void*>(static_cast<const void*>(part.data));
    range.bytes = part.bytes;
    return make_array(range, dtype, shape, offset, nb::none(), std::nullopt);
  }
};
using slot_object = part_object<producer_object, gpushm_slot>;
using item_object = part_object<consumer_object, gpushm_item>;

/// The channel's memory as a segment: it keeps the memory mapped while an array has it, also when
/// the producer or consumer is closed, and knows the device.
memory_range memory_of(const std::shared_ptr<gpushm_client>& client,
                       const string& name,
                       gpushm_access access,
                       const string& device) {
  std::shared_ptr<gpushm_segment> segment =
      open_now(client, name, access, device == "auto" ? string() : device);
  if (segment == nullptr) {
    raise(GPUSHM_ERRC_NO_SUCH_SEGMENT,
          "open",
          name,
          "the channel's memory was removed meanwhile",
          "open the channel again");
  }
  return range_of(std::move(segment));
}

nb::object create_producer(client_object& self,
                           const string& name,
                           std::uint64_t slot_size,
                           std::uint32_t slots,
                           const string& device,
                           bool huge_pages) {
  auto options = with_size<gpushm_channel_options>();
  options.slot_bytes = slot_size;
  options.slots = slots;
  options.device = text(device);
  options.huge_pages = huge_pages;
  gpushm_producer* made = nullptr;
  const auto client = self.handle.get("producer");
  call(client, [&](gpushm_client* handle) {
    return gpushm_producer_create(handle, text(name), &options, &made);
  });
  closable<gpushm_producer> owner(made, gpushm_producer_close);
  memory_range memory = memory_of(client, name, GPUSHM_ACCESS_READ_WRITE, device);
  return make_object<producer_object>(std::move(owner), name, std::move(memory));
}

gpushm_consumer_mode to_mode(const string& text) {
  if (text == "block") {
    return GPUSHM_CONSUMER_BLOCK;
  }
  if (text == "latest") {
    return GPUSHM_CONSUMER_LATEST;
  }
  if (text == "share") {
    return GPUSHM_CONSUMER_SHARE;
  }
  throw nb::value_error(R"(mode is "block", "latest" or "share")");
}

nb::object open_consumer(client_object& self,
                         const string& name,
                         const string& mode,
                         std::uint32_t held,
                         const std::optional<string>& device,
                         std::optional<double> timeout,
                         std::shared_ptr<stop_source> stop) {
  struct state {
    std::shared_ptr<gpushm_client> client;
    string name;
    string device;
    gpushm_consumer_options options = with_size<gpushm_consumer_options>();
    std::shared_ptr<gpushm_consumer> result;
  };
  auto work = std::make_shared<state>();
  work->client = self.handle.get("consumer");
  work->name = name;
  work->device = device.value_or("");
  work->options.mode = to_mode(mode);
  work->options.held = held;
  work->options.device = text(work->device);
  // 0 would be the default of the library.
  work->options.timeout_ms = std::max<std::int64_t>(1, to_milliseconds(timeout));
  run_cancellable(stop, [work](gpushm_stop* by) {
    work->options.stop = by;
    gpushm_consumer* made = nullptr;
    const gpushm_errc code =
        gpushm_consumer_open(work->client.get(), text(work->name), &work->options, &made);
    if (code == GPUSHM_OK) {
      work->result = own_handle(made, gpushm_consumer_close);
    }
    return code;
  });
  closable<gpushm_consumer> owner(std::move(work->result));
  memory_range memory = memory_of(work->client, name, GPUSHM_ACCESS_READ, work->device);
  return make_object<consumer_object>(std::move(owner), name, std::move(memory));
}

[[noreturn]] void raise_late(const char* operation, const string& name, const char* what) {
  raise(GPUSHM_ERRC_TIMED_OUT,
        operation,
        name,
        what,
        "wait longer, or see what the other processes of the channel do (gpushm channel status)");
}

nb::object acquire(nb::handle self,
                   std::optional<double> timeout,
                   nb::handle stream,
                   std::shared_ptr<stop_source> stop) {
  auto& producer = nb::cast<producer_object&>(self);
  const auto handle = producer.handle.get("acquire");
  const bool on_stream = !stream.is_none();
  void* const on = on_stream ? to_stream(stream) : nullptr;
  gpushm_slot slot{};
  const bool acquired = wait_in_parts(
      to_milliseconds(timeout),
      {stop, producer.handle.closing()},
      GPUSHM_OK,
      "acquire",
      [&](std::int64_t part, const call_stop& by) {
        step result;
        result.code =
            on_stream
                ? gpushm_producer_acquire_on(handle.get(), on, part, by.get(), &slot, &result.done)
                : gpushm_producer_acquire(handle.get(), part, by.get(), &slot, &result.done);
        return result;
      });
  if (!acquired) {
    raise_late("acquire", producer.name, "consumers have not released a slot in time");
  }
  return make_object<slot_object>(nb::borrow(self), slot);
}

void publish(slot_object& self, const nb::bytes& metadata, nb::handle stream) {
  const bool on_stream = !stream.is_none();
  void* const on = on_stream ? to_stream(stream) : nullptr;
  call(self.of().handle.get("publish"), [&](gpushm_producer* producer) {
    return on_stream ? gpushm_producer_publish_on(producer, on, metadata.data(), metadata.size())
                     : gpushm_producer_publish(producer, metadata.data(), metadata.size());
  });
  self.is_open = false;
}

void abandon(slot_object& self) {
  if (self.is_open && !self.of().handle.is_closed()) {
    call(self.of().handle.get("abandon"), gpushm_producer_abandon);
  }
  self.is_open = false;
}

nb::object next(nb::handle self,
                std::optional<double> timeout,
                nb::handle stream,
                std::shared_ptr<stop_source> stop) {
  auto& consumer = nb::cast<consumer_object&>(self);
  const auto handle = consumer.handle.get("next");
  const bool on_stream = !stream.is_none();
  void* const on = on_stream ? to_stream(stream) : nullptr;
  gpushm_item item{};
  bool got = false;
  const bool ended_or_got = wait_in_parts(
      to_milliseconds(timeout),
      {stop, consumer.handle.closing()},
      GPUSHM_ERRC_PEER_DIED,
      "next",
      [&](std::int64_t part, const call_stop& by) {
        step result;
        result.code = on_stream
                          ? gpushm_consumer_next_on(handle.get(), on, part, by.get(), &item, &got)
                          : gpushm_consumer_next(handle.get(), part, by.get(), &item, &got);
        result.done = result.code == GPUSHM_OK && (got || gpushm_consumer_has_ended(handle.get()));
        return result;
      });
  if (!ended_or_got) {
    raise_late("next", consumer.name, "the producer has not published an item in time");
  }
  if (!got) {
    return nb::none();
  }
  return make_object<item_object>(nb::borrow(self), item);
}

void release(item_object& self, nb::handle stream) {
  if (!self.is_open) {
    return;
  }
  if (self.of().handle.is_closed()) {
    self.is_open = false;  // leaving has released it
    return;
  }
  const bool on_stream = !stream.is_none();
  void* const on = on_stream ? to_stream(stream) : nullptr;
  call(self.of().handle.get("release"), [&](gpushm_consumer* consumer) {
    return on_stream ? gpushm_consumer_release_on(consumer, on, self.part.number)
                     : gpushm_consumer_release(consumer, self.part.number);
  });
  self.is_open = false;
}

nb::object producer_stats(producer_object& self) {
  auto stats = with_size<gpushm_producer_stats>();
  call(self.handle.get("stats"),
       [&](gpushm_producer* producer) { return gpushm_producer_stats_get(producer, &stats); });
  nb::dict fields;
  fields["announced"] = stats.announced;
  fields["published"] = stats.published;
  fields["consumers"] = stats.consumers;
  fields["dropped"] = stats.dropped;
  fields["is_continuation"] = stats.is_continuation;
  return nb::module_::import_("gpushm._types").attr("ProducerStats")(**fields);
}

template <typename Member>
void def_close(nb::class_<Member>& type, const char* close_doc, const char* enter) {
  type.def(
      "close",
      [](Member& self) { self.handle.close(); },
      nb::sig("def close(self) -> None"),
      close_doc);
  def_context_manager(type, enter, [](Member& self) { self.handle.close(); });
}

template <typename Object>
void def_part(nb::class_<Object>& type) {
  type.def_prop_ro(
          "number",
          [](const Object& self) { return self.part.number; },
          nb::sig("def number(self) -> int"),
          "Of the item, from 1.")
      .def_prop_ro(
          "index",
          [](const Object& self) { return self.part.index; },
          nb::sig("def index(self) -> int"),
          "Of the slot.")
      .def_prop_ro(
          "nbytes",
          [](const Object& self) { return self.part.bytes; },
          nb::sig("def nbytes(self) -> int"),
          "Bytes of the slot.")
      .def(
          "view",
          [](const Object& self, nb::handle dtype, nb::handle shape, std::uint64_t offset) {
            return self.view(dtype, shape, offset);
          },
          nb::arg("dtype") = "uint8",
          nb::arg("shape").none() = nb::none(),
          nb::kw_only(),
          nb::arg("offset") = 0,
          nb::sig("def view(self, dtype: object = 'uint8', shape: int | Sequence[int] | None = "
                  "None, *, offset: int "
                  "= 0) -> Array"),
          "An array on the slot, as :meth:`Segment.view`. The memory stays mapped as long as the "
          "array, but\n"
          "its contents are others when the slot was given back.");
}

}  // namespace

void register_channel(nb::module_& module) {
  nb::class_<slot_object> slot(
      module,
      "Slot",
      nb::is_final(),
      "A slot that a producer fills. A context manager: abandons the slot at the end, unless\n"
      "it was published.");
  def_part(slot);
  slot.def("publish",
           publish,
           nb::arg("metadata") = nb::bytes("", 0),
           nb::kw_only(),
           nb::arg("stream").none() = nb::none(),
           nb::sig("def publish(self, metadata: bytes = b'', *, stream: object = None) -> None"),
           "Publish the item, with up to 256 bytes of metadata; with ``stream``: when it has done "
           "what it was\n"
           "given before. Waits at most a second for earlier items.\n"
           "Raises gpushm.TimedOutError, TooManyWaitsError: the slot is still acquired.")
      .def("abandon",
           abandon,
           nb::sig("def abandon(self) -> None"),
           "Do not publish the item: the next one gets its number. No effect if it was published.");
  def_context_manager(
      slot, "def __enter__(self) -> Slot", [](slot_object& self) { abandon(self); });

  nb::class_<item_object> item(
      module,
      "Item",
      nb::is_final(),
      "An item that a consumer reads. A context manager: releases it at the end.");
  def_part(item);
  item.def_prop_ro(
          "skipped",
          [](const item_object& self) { return self.part.skipped; },
          nb::sig("def skipped(self) -> int"),
          "Items since the previous one that this consumer did not get.")
      .def_prop_ro(
          "metadata",
          [](const item_object& self) {
            return nb::bytes(self.part.metadata, self.part.metadata_bytes);
          },
          nb::sig("def metadata(self) -> bytes"),
          "What the producer has published with it.")
      .def("release",
           release,
           nb::arg("stream").none() = nb::none(),
           nb::sig("def release(self, stream: object = None) -> None"),
           "The item will not be read any more; with ``stream``: when it has done what it was "
           "given before.\n"
           "Again: no effect.");
  def_context_manager(
      item, "def __enter__(self) -> Item", [](item_object& self) { release(self, nb::none()); });

  nb::class_<producer_object> producer(module,
                                       "Producer",
                                       nb::is_final(),
                                       "The process that fills a channel. Made by "
                                       ":meth:`Client.producer`. A context manager. May be shared\n"
                                       "between threads, but has one acquired slot at a time.");
  producer
      .def_prop_ro(
          "name",
          [](const producer_object& self) { return self.name; },
          nb::sig("def name(self) -> str"),
          "The channel's.")
      .def(
          "acquire",
          acquire,
          nb::arg("timeout").none() = 30.0,
          nb::kw_only(),
          nb::arg("stream").none() = nb::none(),
          nb::arg("stop").none() = nb::none(),
          nb::sig("def acquire(self, timeout: float | None = 30.0, *, stream: object = None, stop: "
                  "Stop | None = "
                  "None) -> Slot"),
          "A slot that nobody uses any more; with ``stream``: one that this stream fills, which "
          "waits until\n"
          "nobody uses it. Blocks at most ``timeout`` seconds.\n"
          "Raises gpushm.TimedOutError, CancelledError, InvalidArgumentError (it has one already).")
      .def("stats",
           producer_stats,
           nb::sig("def stats(self) -> ProducerStats"),
           "Counters. Does not block.");
  def_close(
      producer,
      "End the channel: consumers get the items that are published, and then the end. Waits at\n"
      "most a second for streams.",
      "def __enter__(self) -> Producer");

  nb::class_<consumer_object> consumer(
      module,
      "Consumer",
      nb::is_final(),
      "A process that reads a channel. Made by :meth:`Client.consumer`. A context manager, and an\n"
      "asynchronous iterator of items, each to be released. May be shared between threads.");
  consumer
      .def_prop_ro(
          "name",
          [](const consumer_object& self) { return self.name; },
          nb::sig("def name(self) -> str"),
          "The channel's.")
      .def("next",
           next,
           nb::arg("timeout").none() = 30.0,
           nb::kw_only(),
           nb::arg("stream").none() = nb::none(),
           nb::arg("stop").none() = nb::none(),
           nb::sig("def next(self, timeout: float | None = 30.0, *, stream: object = None, stop: "
                   "Stop | None = None) "
                   "-> Item | None"),
           "The next item, or the newest one; None when the producer has closed the channel and "
           "all items\n"
           "were read. With ``stream``: one that this stream reads, which waits until it is "
           "complete;\n"
           "synchronise it and call :meth:`check` before its results are used.\n\n"
           "Blocks at most ``timeout`` seconds. Raises gpushm.TimedOutError, PeerDiedError (and no "
           "new\n"
           "producer in time), TooManyRequestsError (it holds as many as it may), CancelledError.")
      .def(
          "check",
          [](consumer_object& self) { call(self.handle.get("check"), gpushm_consumer_check); },
          nb::sig("def check(self) -> None"),
          "Raise gpushm.PeerDiedError, once, if the producer died before an item was complete that "
          "a stream of\n"
          "this consumer was given.")
      .def_prop_ro(
          "ended",
          [](const consumer_object& self) {
            return gpushm_consumer_has_ended(self.handle.get("ended").get());
          },
          nb::sig("def ended(self) -> bool"),
          "Whether the producer has closed the channel, and all items were read.")
      .def(
          "__aiter__",
          [](nb::handle self) { return aio("Items", self); },
          nb::sig("def __aiter__(self) -> AsyncIterator[Item]"));
  def_close(consumer,
            "Leave the channel. Waits at most a second for streams.",
            "def __enter__(self) -> Consumer");
}

void register_channel_methods(nb::class_<client_object>& type) {
  type.def("producer",
           create_producer,
           nb::arg("name"),
           nb::arg("slot_size"),
           nb::arg("slots"),
           nb::kw_only(),
           nb::arg("device") = "auto",
           nb::arg("huge_pages") = false,
           nb::sig("def producer(self, name: str, slot_size: int, slots: int, *, device: str = "
                   "'auto', huge_pages: "
                   "bool = False) -> Producer"),
           "Create a channel of ``slots`` slots of ``slot_size`` bytes, or continue one whose "
           "producer has\n"
           "ended. Raises gpushm.AlreadyExistsError, SizeMismatchError, and as :meth:`create`.")
      .def("consumer",
           open_consumer,
           nb::arg("name"),
           nb::kw_only(),
           nb::arg("mode") = "block",
           nb::arg("held") = 0,
           nb::arg("device").none() = nb::none(),
           nb::arg("timeout").none() = 10.0,
           nb::arg("stop").none() = nb::none(),
           nb::sig("def consumer(self, name: str, *, mode: str = 'block', held: int = 0, device: "
                   "str | None = None, "
                   "timeout: float | None = 10.0, stop: Stop | None = None) -> Consumer"),
           "Join a channel, at its newest item. ``mode``: ``\"block\"`` (gets each item, and the "
           "producer\n"
           "waits), ``\"latest\"`` (gets the newest one) or ``\"share\"`` (each item is for one of "
           "these\n"
           "consumers). ``held``: items that it may hold; 0: the default of the mode.\n\n"
           "Blocks until the channel exists and its producer has answered, at most ``timeout`` "
           "seconds.\n"
           "Raises gpushm.NoSuchSegmentError, QuotaExceededError, TimedOutError, CancelledError.");
}

}  // namespace gpushm_python
