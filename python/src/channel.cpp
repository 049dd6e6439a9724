// SPDX-License-Identifier: Apache-2.0
#include "channel.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "array.hpp"
#include "device.hpp"
#include "exchange.hpp"
#include "gpushm/channel.h"
#include "in_python.hpp"
#include "poller.hpp"
#include "segment.hpp"
#include "stop.hpp"
#include "stream.hpp"

namespace gpushm_python {
namespace {

using std::string;

/// An item that a consumer has taken, until it is released. Refers to nothing of Python.
struct taken_item {
  gpushm_item* token = nullptr;
  gpushm_item_info info = with_size<gpushm_item_info>();
  string metadata;
  /// For which it is released, and has been made to wait: a later `next` has returned an item that
  /// was taken for the CPU.
  std::optional<void*> reader;
  bool is_open = true;
};

struct producer_object {
  closable<gpushm_producer> handle;
  string name;
};

struct consumer_object {
  closable<gpushm_consumer> handle;
  string name;
  std::int64_t resume_ms = 0;
  /// Taken, and given back by a read that was cancelled: `next` returns them first.
  std::deque<std::shared_ptr<taken_item>> unread = {};

  void close() noexcept {
    for (const auto& each : unread) {
      each->is_open = false;
    }
    unread.clear();
    handle.close();
  }
};

/// For people: `<gpushm.Consumer of "camera", closed>`.
string described(const char* type, const string& channel, const string& state) {
  return string("<gpushm.") + type + " of \"" + channel + '"' +
         (state.empty() ? "" : ", " + state) + '>';
}

/// What is wrong with a use, and ends the message's advice.
[[noreturn]] void raise_used(const char* operation, const string& name, const char* cause) {
  raise(GPUSHM_ERRC_INVALID_ARGUMENT,
        operation,
        name,
        cause,
        "use each slot and each item once, and its arrays no longer than that");
}

/// How a slot is published or an item released.
struct ending {
  std::optional<void*> stream;
  bool is_now = false;

  ending(nb::handle of_stream, bool cpu, const std::optional<void*>& own = std::nullopt) {
    if (cpu && !of_stream.is_none()) {
      throw nb::value_error("pass a stream, or cpu=True, not both");
    }
    is_now = cpu;
    if (!cpu) {
      stream = of_stream.is_none() ? own : std::optional<void*>(to_stream(of_stream));
    }
  }
};

/// Reports that an object was dropped, which has been given back. Needs the GIL.
void warn_of_drop(const char* form, const string& name) noexcept {
  if (Py_IsInitialized() == 0) {
    return;
  }
  const nb::error_scope saved;
  if (PyErr_WarnFormat(PyExc_ResourceWarning, 1, form, name.c_str()) != 0) {
    PyErr_WriteUnraisable(nullptr);
  }
}

memory_range part_of(gpushm_segment* memory, const void* data, std::uint64_t bytes) {
  memory_range range = range_of(own_segment(memory));
  range.data = const_cast<void*>(data);
  range.bytes = bytes;
  return range;
}

/// gpushm.Slot: a slot that a producer fills. Keeps the Python object of its producer.
struct slot_object {
  nb::object producer;
  gpushm_slot* token = nullptr;
  gpushm_slot_info info = with_size<gpushm_slot_info>();
  bool is_open = true;

  slot_object(nb::object owner, gpushm_slot* acquired)
      : producer(std::move(owner)), token(acquired) {}
  slot_object(const slot_object&) = delete;
  slot_object& operator=(const slot_object&) = delete;
  ~slot_object() {
    if (!is_open || member().handle.is_closed()) {
      return;
    }
    if (gpushm_slot_abandon(token) == GPUSHM_OK) {
      warn_of_drop("a slot of the channel \"%s\" was dropped: publish or abandon each",
                   member().name);
    }
  }

  [[nodiscard]] producer_object& member() const { return *nb::inst_ptr<producer_object>(producer); }
  void require_open(const char* operation) const {
    if (!is_open) {
      raise_used(operation, member().name, "the slot was given back");
    }
  }
  /// Calls `end(token)`, after which it is used.
  template <typename End>
  void use(const char* operation, End end) {
    require_open(operation);
    is_open = false;
    failure failed;
    {
      const auto keep = member().handle.get(operation);
      const nb::gil_scoped_release released;
      failed = failure::of(end(token));
    }
    is_open = failed.code() != GPUSHM_OK;
    failed.raise_if_any();
  }
};

/// gpushm.Item: an item that a consumer reads. Keeps the Python object of its consumer.
struct item_object {
  nb::object consumer;
  std::shared_ptr<taken_item> taken;

  item_object(nb::object owner, std::shared_ptr<taken_item> item)
      : consumer(std::move(owner)), taken(std::move(item)) {}
  item_object(const item_object&) = delete;
  item_object& operator=(const item_object&) = delete;
  ~item_object() {
    if (taken == nullptr || !taken->is_open || member().handle.is_closed()) {
      return;
    }
    taken->is_open = false;
    const gpushm_errc code = taken->reader.has_value()
                                 ? gpushm_item_release_on(taken->token, *taken->reader)
                                 : gpushm_item_release(taken->token);
    if (code == GPUSHM_OK) {
      warn_of_drop("an item of the channel \"%s\" was dropped: release each", member().name);
    }
  }

  [[nodiscard]] consumer_object& member() const { return *nb::inst_ptr<consumer_object>(consumer); }
  void require_open(const char* operation) const {
    if (taken == nullptr || !taken->is_open) {
      raise_used(operation, member().name, "the slot was given back");
    }
  }
};

/// Guards memory that a stream may use before the CPU. `info()`: the slot or item at the time of
/// this call; `wait_on(stream)`: makes another stream wait; `may_use`: whether a CPU may.
template <typename Info, typename Wait, typename Flag>
void guard(array& made, Info info, Wait wait_on, Flag may_use, const array::early_use& early) {
  const auto first = info();
  if (!first.on_stream) {
    return;
  }
  made.arrival = [wait_on, own = first.stream](void* stream) {
    if (stream != own) {
      call_released([&] { return wait_on(stream); });
    }
  };
  made.has_arrived = [info, may_use] { return info().*may_use; };
  made.early = early;
}

array view_of(const slot_object& self,
              nb::handle dtype = nb::str("uint8"),
              nb::handle shape = nb::none(),
              std::uint64_t offset = 0) {
  self.require_open("view");
  gpushm_slot* const token = self.token;
  gpushm_segment* memory = nullptr;
  failure::of(gpushm_slot_memory(token, &memory)).raise_if_any();
  array result = make_array(part_of(memory, self.info.data, self.info.bytes),
                            dtype,
                            shape,
                            offset,
                            nb::none(),
                            std::nullopt);
  guard(
      result,
      [token] {
        auto now = with_size<gpushm_slot_info>();
        failure::of(gpushm_slot_get(token, &now)).raise_if_any();
        return now;
      },
      [token](void* stream) { return gpushm_slot_wait_on(token, stream); },
      &gpushm_slot_info::is_free,
      {"the slot",
       "was acquired for a stream, and is still read",
       "synchronise the stream first, or acquire the slot without a stream"});
  return result;
}

array view_of(const item_object& self,
              nb::handle dtype = nb::str("uint8"),
              nb::handle shape = nb::none(),
              std::uint64_t offset = 0) {
  self.require_open("view");
  const std::shared_ptr<taken_item> taken = self.taken;
  gpushm_segment* memory = nullptr;
  failure::of(gpushm_item_memory(taken->token, &memory)).raise_if_any();
  array result = make_array(part_of(memory, taken->info.data, taken->info.bytes),
                            dtype,
                            shape,
                            offset,
                            nb::none(),
                            std::nullopt);
  guard(
      result,
      [taken] {
        auto now = with_size<gpushm_item_info>();
        failure::of(gpushm_item_get(taken->token, &now)).raise_if_any();
        return now;
      },
      [taken](void* stream) { return gpushm_item_wait_on(taken->token, stream); },
      &gpushm_item_info::is_complete,
      {"the item",
       "was taken for a stream, and is not complete",
       "synchronise the stream first, or take the item without a stream"});
  return result;
}

nb::object create_producer(client_object& self,
                           const string& name,
                           std::uint64_t slot_size,
                           std::uint32_t slots,
                           nb::handle where,
                           bool huge_pages) {
  auto options = with_size<gpushm_channel_options>();
  options.slot_bytes = slot_size;
  options.slots = slots;
  const string device = to_device(where);
  options.device = text(device);
  options.huge_pages = huge_pages;
  gpushm_producer* made = nullptr;
  call(self.handle.get("producer"), [&](gpushm_client* handle) {
    return gpushm_producer_create(handle, text(name), &options, &made);
  });
  return make_object<producer_object>(closable<gpushm_producer>(made, gpushm_producer_close), name);
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
                         nb::handle device,
                         std::optional<double> timeout,
                         std::optional<double> resume,
                         std::shared_ptr<stop_source> stop) {
  struct state {
    std::shared_ptr<gpushm_client> client;
    string name;
    string device;
    gpushm_consumer_options options = with_size<gpushm_consumer_options>();
    std::int64_t timeout_ms = 0;
    std::shared_ptr<gpushm_consumer> result;
  };
  auto work = std::make_shared<state>();
  work->client = self.handle.get("consumer");
  work->name = name;
  work->device = to_device(device);
  work->options.mode = to_mode(mode);
  work->options.held = held;
  work->options.device = text(work->device);
  work->timeout_ms = to_milliseconds(timeout);
  work->options.resume_ms = to_milliseconds(resume, "resume");
  run_cancellable({stop, self.handle.closing()}, [work](gpushm_stop* wait_stop) {
    work->options.stop = wait_stop;
    gpushm_consumer* made = nullptr;
    const gpushm_errc code = gpushm_consumer_open(
        work->client.get(), text(work->name), &work->options, work->timeout_ms, &made);
    if (code == GPUSHM_OK) {
      work->result = own_handle(made, gpushm_consumer_close);
    }
    return code;
  });
  return make_object<consumer_object>(
      closable<gpushm_consumer>(std::move(work->result)), name, work->options.resume_ms);
}

[[noreturn]] void raise_late(const char* operation, const string& name, const char* cause) {
  raise(GPUSHM_ERRC_TIMED_OUT,
        operation,
        name,
        cause,
        "wait longer, or see what the other processes of the channel do (gpushm channel stat)");
}

nb::object make_slot(nb::handle producer, gpushm_slot* token) {
  nb::object result = make_object<slot_object>(nb::borrow(producer), token);
  failure::of(gpushm_slot_get(token, &nb::cast<slot_object&>(result).info)).raise_if_any();
  return result;
}

/// As `acquire`, without waiting: a Slot, or as `to_progress`.
nb::object try_acquire(
    nb::handle self, nb::handle stream, poller_object& poller, std::uint64_t key, bool has_waited) {
  auto& producer = nb::cast<producer_object&>(self);
  require_open_still(producer, has_waited, "acquire");
  const auto handle = producer.handle.get("acquire");
  const bool on_stream = !stream.is_none();
  void* const on = on_stream ? to_stream(stream) : nullptr;
  gpushm_slot* slot = nullptr;
  const gpushm_progress progress = poller.watch(
      key, producer.handle.closing(), [&](auto* poller_handle, auto* stop, auto* result) {
        return on_stream
                   ? gpushm_producer_watch_on(
                         handle.get(), on, poller_handle, key, stop, &slot, result)
                   : gpushm_producer_watch(handle.get(), poller_handle, key, stop, &slot, result);
      });
  return progress == GPUSHM_PROGRESS_DONE ? make_slot(self, slot)
                                          : to_progress(progress, nb::none());
}

nb::object acquire(nb::handle self,
                   std::optional<double> timeout,
                   nb::handle stream,
                   std::shared_ptr<stop_source> stop) {
  auto& producer = nb::cast<producer_object&>(self);
  const auto handle = producer.handle.get("acquire");
  const bool on_stream = !stream.is_none();
  void* const on = on_stream ? to_stream(stream) : nullptr;
  gpushm_slot* slot = nullptr;
  const bool acquired = wait_in_parts(
      to_milliseconds(timeout),
      {stop, producer.handle.closing()},
      GPUSHM_OK,
      "acquire",
      [&](std::int64_t part, const call_stop& wait_stop) {
        step result;
        result.code = on_stream ? gpushm_producer_acquire_on(
                                      handle.get(), on, part, wait_stop.get(), &slot, &result.done)
                                : gpushm_producer_acquire(
                                      handle.get(), part, wait_stop.get(), &slot, &result.done);
        return result;
      });
  if (!acquired) {
    raise_late("acquire", producer.name, "consumers have not released a slot in time");
  }
  return make_slot(self, slot);
}

std::uint64_t publish(slot_object& self, const nb::bytes& metadata, nb::handle stream, bool cpu) {
  const ending end(stream, cpu);
  std::uint64_t number = 0;
  self.use("publish", [&](gpushm_slot* slot) {
    if (end.is_now) {
      return gpushm_slot_publish_now(slot, metadata.data(), metadata.size(), &number);
    }
    return end.stream.has_value()
               ? gpushm_slot_publish_on(
                     slot, *end.stream, metadata.data(), metadata.size(), &number)
               : gpushm_slot_publish(slot, metadata.data(), metadata.size(), &number);
  });
  return number;
}

void abandon(slot_object& self) {
  self.use("abandon", gpushm_slot_abandon);
}

/// At the end of a `with` statement.
void abandon_if_open(slot_object& self) {
  if (self.is_open && !self.member().handle.is_closed()) {
    abandon(self);
  }
}

/// Takes the next item that a cancelled read has put back.
nb::object next_unread(nb::handle self, const std::optional<void*>& stream) {
  auto& consumer = nb::cast<consumer_object&>(self);
  std::shared_ptr<taken_item> item = std::move(consumer.unread.front());
  consumer.unread.pop_front();
  if (stream.has_value()) {
    item->reader = stream;
  }
  return make_object<item_object>(nb::borrow(self), std::move(item));
}

nb::object make_item(nb::handle consumer, const std::shared_ptr<taken_item>& item) {
  nb::object result = make_object<item_object>(nb::borrow(consumer), item);
  failure::of(gpushm_item_get(item->token, &item->info)).raise_if_any();
  item->metadata.assign(static_cast<const char*>(item->info.metadata), item->info.metadata_size);
  return result;
}

/// As `next` for the CPU, without waiting: an Item, or as `to_progress`.
nb::object try_next(nb::handle self, poller_object& poller, std::uint64_t key, bool has_waited) {
  auto& consumer = nb::cast<consumer_object&>(self);
  require_open_still(consumer, has_waited, "next");
  const auto handle = consumer.handle.get("next");
  if (!consumer.unread.empty()) {
    return next_unread(self, std::nullopt);
  }
  const auto item = std::make_shared<taken_item>();
  const gpushm_progress progress = poller.watch(
      key, consumer.handle.closing(), [&](auto* poller_handle, auto* stop, auto* result) {
        return gpushm_consumer_watch(handle.get(), poller_handle, key, stop, &item->token, result);
      });
  return progress == GPUSHM_PROGRESS_DONE ? make_item(self, item)
                                          : to_progress(progress, nb::none());
}

nb::object next(nb::handle self,
                std::optional<double> timeout,
                nb::handle stream,
                std::shared_ptr<stop_source> stop) {
  auto& consumer = nb::cast<consumer_object&>(self);
  const auto handle = consumer.handle.get("next");
  std::optional<void*> on;
  if (!stream.is_none()) {
    on = to_stream(stream);
  }
  if (!consumer.unread.empty()) {
    return next_unread(self, on);
  }
  auto item = std::make_shared<taken_item>();
  bool got = false;
  // Without a limit of its own, the wait for the next producer is as long as this call.
  const gpushm_errc early =
      consumer.resume_ms == GPUSHM_FOREVER ? GPUSHM_ERRC_PEER_DIED : GPUSHM_OK;
  const bool ended_or_got = wait_in_parts(
      to_milliseconds(timeout),
      {stop, consumer.handle.closing()},
      early,
      "next",
      [&](std::int64_t part, const call_stop& wait_stop) {
        step result;
        result.code =
            on.has_value()
                ? gpushm_consumer_next_on(
                      handle.get(), *on, part, wait_stop.get(), &item->token, &got)
                : gpushm_consumer_next(handle.get(), part, wait_stop.get(), &item->token, &got);
        result.done = result.code == GPUSHM_OK && (got || gpushm_consumer_has_ended(handle.get()));
        return result;
      });
  if (!ended_or_got) {
    if (!consumer.unread.empty()) {
      return next_unread(self, on);
    }
    raise_late("next", consumer.name, "the producer has not published an item in time");
  }
  if (!got) {
    return nb::none();
  }
  return make_item(self, item);
}

void release(item_object& self, nb::handle stream, bool cpu) {
  self.require_open("release");
  taken_item& taken = *self.taken;
  const ending end(stream, cpu, taken.reader);
  taken.is_open = false;
  failure failed;
  {
    const auto keep = self.member().handle.get("release");
    const nb::gil_scoped_release released;
    failed = failure::of(end.is_now               ? gpushm_item_release_now(taken.token)
                         : end.stream.has_value() ? gpushm_item_release_on(taken.token, *end.stream)
                                                  : gpushm_item_release(taken.token));
  }
  taken.is_open = failed.code() != GPUSHM_OK;
  failed.raise_if_any();
}

/// At the end of a `with` statement.
void release_if_open(item_object& self) {
  if (self.taken != nullptr && self.taken->is_open && !self.member().handle.is_closed()) {
    release(self, nb::none(), false);
  }
}

/// The consumer's next call returns the item again: the task that has read it was cancelled.
void unread(item_object& self) {
  if (self.taken != nullptr && self.taken->is_open && !self.member().handle.is_closed()) {
    self.member().unread.push_back(std::move(self.taken));
    self.taken = nullptr;
  }
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

void close(producer_object& self) {
  self.handle.close();
}

void close(consumer_object& self) {
  self.close();
}

template <typename Member>
void def_close(nb::class_<Member>& type, const char* close_doc, const char* enter) {
  type.def(
      "close", [](Member& self) { close(self); }, nb::sig("def close(self) -> None"), close_doc);
  def_context_manager(type, enter, [](Member& self) { close(self); });
}

/// `info(object)`: what both kinds of parts have.
template <typename Object, typename Info>
void def_part(nb::class_<Object>& type, Info info) {
  type.def_prop_ro(
          "index",
          [info](const Object& self) { return info(self).index; },
          nb::sig("def index(self) -> int"),
          "Of the slot.")
      .def_prop_ro(
          "nbytes",
          [info](const Object& self) { return info(self).bytes; },
          nb::sig("def nbytes(self) -> int"),
          "Bytes of the slot.")
      .def(
          "view",
          [](const Object& self, nb::handle dtype, nb::handle shape, std::uint64_t offset) {
            return view_of(self, dtype, shape, offset);
          },
          nb::arg("dtype") = "uint8",
          nb::arg("shape").none() = nb::none(),
          nb::kw_only(),
          nb::arg("offset") = 0,
          nb::sig("def view(self, dtype: object = 'uint8', shape: int | Sequence[int] | None = "
                  "None, *, offset: int = 0) -> Array"),
          "An array on the slot, as :meth:`Segment.view`. The memory stays mapped as long as the "
          "array, but\n"
          "its contents are others when the slot was given back. Of a slot or item of a stream, "
          "each other\n"
          "stream that uses it waits until the slot is free or the item complete; the CPU gets a "
          "BufferError\n"
          "before. Raises gpushm.InvalidArgumentError when the slot was given back.");
  def_exchange(
      type, [](const Object& self) { return view_of(self); }, docs_of_bytes);
}

const taken_item& taken_of(const item_object& self) {
  if (self.taken == nullptr) {
    raise_used("item", self.member().name, "the item was given back");
  }
  return *self.taken;
}

void register_slot(nb::module_& module) {
  nb::class_<slot_object> slot(
      module,
      "Slot",
      nb::is_final(),
      "A slot that a producer fills; ``torch.from_dlpack(slot)`` are its bytes. A context manager: "
      "abandons\n"
      "the slot at the end, unless it was published. A slot that is dropped is abandoned, with a\n"
      "ResourceWarning.");
  def_part(slot, [](const slot_object& self) -> const gpushm_slot_info& { return self.info; });
  slot.def(
          "publish",
          publish,
          nb::arg("metadata") = nb::bytes("", 0),
          nb::kw_only(),
          nb::arg("stream").none() = nb::none(),
          nb::arg("cpu") = false,
          nb::sig("def publish(self, metadata: bytes = b'', *, stream: object = None, cpu: bool = "
                  "False) -> int"),
          "Publish the item, with up to 256 bytes of metadata, and return its number, from 1: "
          "when the\n"
          "stream that the slot was acquired for (or ``stream``) has completed its earlier work; "
          "now,\n"
          "if it was acquired without one, or with ``cpu=True`` (synchronise the stream first).\n\n"
          "Does not wait. Raises gpushm.InvalidArgumentError (published or abandoned before),\n"
          "TooManyWaitsError: the slot is still acquired.")
      .def("abandon",
           abandon,
           nb::sig("def abandon(self) -> None"),
           "Do not publish the slot. What a stream still writes into it must be done, or ordered "
           "before\n"
           "what fills it next. Raises gpushm.InvalidArgumentError (published or abandoned "
           "before).");
  def_context_manager(slot, "def __enter__(self) -> Slot", abandon_if_open);
  module.def("try_acquire",
             try_acquire,
             nb::arg("producer"),
             nb::arg("stream").none(),
             nb::arg("poller"),
             nb::arg("key"),
             nb::arg("has_waited"),
             nb::sig("def try_acquire(producer: Producer, stream: object, poller: Poller, key: "
                     "int, has_waited: bool) -> Slot | bool | None"),
             "A slot; False: there is a watch; None: only :meth:`Producer.acquire` can tell.");
}

void register_item(nb::module_& module) {
  nb::class_<item_object> item(
      module,
      "Item",
      nb::is_final(),
      "An item that a consumer reads; ``torch.from_dlpack(item)`` are its bytes. A context "
      "manager: releases\n"
      "it at the end, as :meth:`release` does without arguments. An item that is dropped is "
      "released so, with\n"
      "a ResourceWarning.");
  def_part(item,
           [](const item_object& self) -> const gpushm_item_info& { return taken_of(self).info; });
  item.def_prop_ro(
          "number",
          [](const item_object& self) { return taken_of(self).info.number; },
          nb::sig("def number(self) -> int"),
          "Of the item, from 1.")
      .def_prop_ro(
          "skipped",
          [](const item_object& self) { return taken_of(self).info.skipped; },
          nb::sig("def skipped(self) -> int"),
          "Items since the previous one that this consumer did not get.")
      .def_prop_ro(
          "metadata",
          [](const item_object& self) {
            const string& metadata = taken_of(self).metadata;
            return nb::bytes(metadata.data(), metadata.size());
          },
          nb::sig("def metadata(self) -> bytes"),
          "What the producer has published with it.")
      .def("release",
           release,
           nb::kw_only(),
           nb::arg("stream").none() = nb::none(),
           nb::arg("cpu") = false,
           nb::sig("def release(self, *, stream: object = None, cpu: bool = False) -> None"),
           "Releases the item: when the stream that it was taken for (or "
           "``stream``) has\n"
           "completed its earlier work; now, if it was taken without one, or with ``cpu=True``\n"
           "(synchronise the stream first).\n\n"
           "Does not wait. Raises gpushm.InvalidArgumentError (released before).");
  def_context_manager(item, "def __enter__(self) -> Item", release_if_open);
  module.def("unread",
             unread,
             nb::arg("item"),
             nb::sig("def unread(item: Item) -> None"),
             "Give an item back to its consumer, whose next call returns it again.");
  module.def("try_next",
             try_next,
             nb::arg("consumer"),
             nb::arg("poller"),
             nb::arg("key"),
             nb::arg("has_waited"),
             nb::sig("def try_next(consumer: Consumer, poller: Poller, key: int, has_waited: bool) "
                     "-> Item | bool | None"),
             "An item; False: there is a watch; None: only :meth:`Consumer.next` can tell.");
}

}  // namespace

void register_channel(nb::module_& module) {
  register_slot(module);
  register_item(module);
  nb::class_<producer_object> producer(module,
                                       "Producer",
                                       nb::is_final(),
                                       "The process that fills a channel. Made by "
                                       ":meth:`Client.producer`. A context manager. May be shared\n"
                                       "between threads.");
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
          "A free slot; with ``stream``: one that this stream fills, which "
          "waits until\n"
          "nobody uses it. Several may be acquired at once. Blocks at most ``timeout`` seconds.\n"
          "Raises gpushm.TimedOutError, CancelledError.")
      .def(
          "acquire_async",
          [](nb::handle self, std::optional<double> timeout, nb::handle stream) {
            return aio("producer_acquire", self, timeout, stream);
          },
          nb::arg("timeout").none() = 30.0,
          nb::kw_only(),
          nb::arg("stream").none() = nb::none(),
          nb::sig("def acquire_async(self, timeout: float | None = 30.0, *, stream: object = None) "
                  "-> Coroutine[Any, Any, Slot]"),
          "As :meth:`acquire`, for asyncio. Cancelling the task ends the wait, and abandons the "
          "slot.")
      .def("stats",
           producer_stats,
           nb::sig("def stats(self) -> ProducerStats"),
           "Counters. Does not block.");
  producer.def(
      "__repr__",
      [](const producer_object& self) {
        return described("Producer", self.name, self.handle.is_closed() ? "closed" : "");
      },
      nb::sig("def __repr__(self) -> str"));
  def_close(
      producer,
      "End the channel: consumers get the items that are published, and then the end. Slots are\n"
      "abandoned. Calls of other threads that wait end with gpushm.CancelledError. Waits at most "
      "a\n"
      "second for streams.",
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
           "Blocks at most ``timeout`` seconds; each thread has its turn, and its own timeout. "
           "Raises\n"
           "gpushm.TimedOutError, PeerDiedError (and no new producer within ``resume`` of\n"
           ":meth:`Client.consumer`), TooManyRequestsError (it holds as many as it may), "
           "CancelledError.")
      .def(
          "next_async",
          [](nb::handle self, std::optional<double> timeout) {
            return aio("consumer_next", self, timeout);
          },
          nb::arg("timeout").none() = 30.0,
          nb::sig("def next_async(self, timeout: float | None = 30.0) -> Coroutine[Any, Any, Item "
                  "| None]"),
          "As :meth:`next` without a stream, for asyncio. Cancelling the task ends the wait; an "
          "item that\n"
          "it had taken is returned by the next call.")
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
            return gpushm_consumer_has_ended(self.handle.get("ended").get()) && self.unread.empty();
          },
          nb::sig("def ended(self) -> bool"),
          "Whether the producer has closed the channel, and all items were read.")
      .def(
          "__aiter__",
          [](nb::handle self) { return aio("Items", self); },
          nb::sig("def __aiter__(self) -> AsyncIterator[Item]"));
  consumer.def(
      "__repr__",
      [](const consumer_object& self) {
        if (self.handle.is_closed()) {
          return described("Consumer", self.name, "closed");
        }
        const bool has_ended = gpushm_consumer_has_ended(self.handle.get("repr").get());
        return described("Consumer", self.name, has_ended ? "ended" : "");
      },
      nb::sig("def __repr__(self) -> str"));
  def_close(consumer,
            "Leave the channel. Its items are released. Calls of other threads that wait end with\n"
            "gpushm.CancelledError. Waits at most a second for streams.",
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
           nb::sig("def producer(self, name: str, slot_size: int, slots: int, *, device: Device = "
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
           nb::arg("resume").none() = 0.0,
           nb::arg("stop").none() = nb::none(),
           nb::sig("def consumer(self, name: str, *, mode: str = 'block', held: int = 0, device: "
                   "Device | None = None, "
                   "timeout: float | None = 10.0, resume: float | None = 0.0, stop: Stop | None = "
                   "None) -> Consumer"),
           "Join a channel, at its newest item. ``mode``: ``\"block\"`` (gets each item, and the "
           "producer\n"
           "waits), ``\"latest\"`` (gets the newest one) or ``\"share\"`` (each item is for one of "
           "these\n"
           "consumers). ``held``: items that it may hold; 0: the default of the mode. ``resume``: "
           "seconds\n"
           "that :meth:`Consumer.next` waits for the next producer when this one has died; 0: it "
           "raises\n"
           "PeerDiedError at once, None: as long as its own timeout.\n\n"
           "Blocks until the channel exists and its producer has answered, at most ``timeout`` "
           "seconds.\n"
           "Raises gpushm.NoSuchSegmentError, QuotaExceededError, TimedOutError, CancelledError.");
}

}  // namespace gpushm_python
