// SPDX-License-Identifier: Apache-2.0
#include "tensors.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "array.hpp"
#include "device.hpp"
#include "dtype.hpp"
#include "exchange_table.hpp"
#include "gpushm/tensors.h"
#include "known_memory.hpp"
#include "stop.hpp"

namespace gpushm_python {
namespace {

using std::string;

gpushm_reading to_reading(const string& text) {
  if (text == "auto") {
    return GPUSHM_READING_AUTOMATIC;
  }
  if (text == "cached") {
    return GPUSHM_READING_CACHED;
  }
  if (text == "direct") {
    return GPUSHM_READING_DIRECT;
  }
  throw nb::value_error(R"(reading is "auto", "cached" or "direct")");
}

gpushm_verify to_verify(const string& text) {
  if (text == "auto") {
    return GPUSHM_VERIFY_AUTOMATIC;
  }
  if (text == "full") {
    return GPUSHM_VERIFY_FULL;
  }
  throw nb::value_error(R"(verify is "auto" or "full")");
}

/// One path, or several.
std::vector<string> to_paths(nb::handle paths) {
  if (nb::isinstance<nb::str>(paths) || nb::isinstance<nb::bytes>(paths) ||
      nb::hasattr(paths, "__fspath__")) {
    return {path_of(paths)};
  }
  std::vector<string> result;
  for (const nb::handle path : nb::iter(paths)) {
    result.push_back(path_of(path));
  }
  return result;
}

/// Names or patterns of tensors. None: all.
std::vector<string> to_names(nb::handle names) {
  std::vector<string> result;
  if (names.is_none()) {
    return result;
  }
  if (nb::isinstance<nb::str>(names) || nb::isinstance<nb::bytes>(names)) {
    throw nb::type_error("tensors is a sequence of names, not one name");
  }
  for (const nb::handle each : nb::iter(names)) {
    if (!nb::isinstance<nb::str>(each)) {
      throw nb::type_error("tensors is a sequence of str");
    }
    result.push_back(nb::cast<string>(each));
  }
  if (result.empty()) {
    throw nb::value_error("tensors is empty: pass None to load all");
  }
  return result;
}

/// A slice that owns its name.
struct named_slice {
  string name;
  std::int32_t dimension = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t parts = 0;
};

/// (dim, begin, end), or with the number of parts that begin and end count.
named_slice to_slice(const string& name, nb::handle slice) {
  const auto refused = [&] {
    return nb::value_error(("slice " + nb::cast<string>(nb::repr(slice)) + " of \"" + name +
                            "\" is not (dim, begin, end) or (dim, begin, end, parts) of integers " +
                            "that are not negative, but for dim")
                               .c_str());
  };
  constexpr std::size_t without_parts = 3;
  const auto given = nb::borrow<nb::tuple>(slice);
  if (given.size() != without_parts && given.size() != without_parts + 1) {
    throw refused();
  }
  named_slice result;
  result.name = name;
  bool is_valid = nb::try_cast(given[0], result.dimension) &&
                  nb::try_cast(given[1], result.begin) && nb::try_cast(given[2], result.end);
  if (given.size() != without_parts) {
    is_valid = is_valid && nb::try_cast(given[3], result.parts) && result.parts != 0;
  }
  if (!is_valid) {
    throw refused();
  }
  return result;
}

/// Reads slices by names or patterns: one slice for each, or several. Python's None has none.
std::vector<named_slice> to_slices(nb::handle slices) {
  std::vector<named_slice> result;
  if (slices.is_none()) {
    return result;
  }
  for (const nb::handle each : nb::iter(slices.attr("items")())) {
    const auto entry = nb::cast<nb::tuple>(each);
    if (!nb::isinstance<nb::str>(entry[0])) {
      throw nb::type_error("slices are by names of tensors");
    }
    const auto name = nb::cast<string>(entry[0]);
    const auto refuse = [&] {
      throw nb::type_error(("the slices of \"" + name +
                            "\" are neither a tuple of integers nor a sequence of such tuples")
                               .c_str());
    };
    const nb::handle given = entry[1];
    const bool is_one = nb::isinstance<nb::tuple>(given) && nb::len(given) != 0 &&
                        !nb::isinstance<nb::tuple>(nb::borrow<nb::tuple>(given)[0]);
    if (is_one) {
      result.push_back(to_slice(name, given));
      continue;
    }
    if (nb::isinstance<nb::str>(given) || !nb::isinstance<nb::sequence>(given)) {
      refuse();
    }
    for (const nb::handle slice : nb::iter(given)) {
      if (!nb::isinstance<nb::tuple>(slice)) {
        refuse();
      }
      result.push_back(to_slice(name, slice));
    }
  }
  return result;
}

/// Text in UTF-8, as str or bytes.
string to_text(nb::handle object) {
  if (nb::isinstance<nb::bytes>(object)) {
    const auto bytes = nb::borrow<nb::bytes>(object);
    return {bytes.c_str(), bytes.size()};
  }
  if (!nb::isinstance<nb::str>(object)) {
    throw nb::type_error("a table is a str or bytes");
  }
  return nb::cast<string>(object);
}

/// Calls a function of Python from the thread that loads, until the load is abandoned: that thread
/// may then live longer than the interpreter.
class progress_calls {
 public:
  explicit progress_calls(nb::handle function) : function_(function) {}
  progress_calls(const progress_calls&) = delete;
  progress_calls& operator=(const progress_calls&) = delete;
  ~progress_calls() = default;

  /// Returns false if it has raised an exception, now or before. Precondition: the thread does not
  /// have the GIL.
  bool call(const gpushm_load_progress& how_far) noexcept {
    if (is_over_) {
      return false;
    }
    const nb::gil_scoped_acquire acquired;
    if (is_over_) {
      return false;
    }
    try {
      const nb::object function = nb::borrow(function_);
      function(how_far.bytes, how_far.total_bytes, how_far.resumed_bytes, how_far.is_here);
      return true;
    } catch (nb::python_error& e) {
      raised_ = e.value().inc_ref().ptr();
    } catch (const std::exception& e) {
      PyErr_SetString(PyExc_RuntimeError, e.what());
      nb::python_error error;
      raised_ = error.value().inc_ref().ptr();
    }
    is_over_ = true;
    return false;
  }
  /// No call begins after this. Raises what the function has raised. Needs the GIL.
  void end() {
    is_over_ = true;
    if (PyObject* const raised = std::exchange(raised_, nullptr); raised != nullptr) {
      const nb::object owned = nb::steal(raised);
      PyErr_SetObject(owned.type().ptr(), owned.ptr());
      throw nb::python_error();
    }
  }

 private:
  nb::handle function_;  // borrowed: of the caller, who calls end() before it goes
  std::atomic<bool> is_over_ = false;
  PyObject* raised_ = nullptr;  // protected by the GIL; never released without it
};

struct loading {
  std::shared_ptr<gpushm_client> client;
  string name;
  string device;
  std::vector<string> paths;
  std::vector<string> tensors;
  std::vector<named_slice> slices;
  gpushm_load_options options = with_size<gpushm_load_options>();
  std::int64_t timeout_ms = 0;
  gpushm_segment* segment = nullptr;
  std::optional<progress_calls> progress;

  loading() = default;
  loading(const loading&) = delete;
  loading& operator=(const loading&) = delete;
  ~loading() { gpushm_segment_close(segment); }

  gpushm_errc run(gpushm_stop* given_stop) {
    std::vector<gpushm_string> texts;
    for (const string& path : paths) {
      texts.push_back(text(path));
    }
    std::vector<gpushm_string> names;
    for (const string& each : tensors) {
      names.push_back(text(each));
    }
    std::vector<gpushm_tensor_slice> parts;
    for (const named_slice& each : slices) {
      auto part = with_size<gpushm_tensor_slice>();
      part.name = text(each.name);
      part.dimension = each.dimension;
      part.begin = each.begin;
      part.end = each.end;
      part.parts = each.parts;
      parts.push_back(part);
    }
    options.tensors = names.data();
    options.tensor_count = names.size();
    options.slices = parts.data();
    options.slice_count = parts.size();
    stop = given_stop;
    options.stop = given_stop;
    return gpushm_tensors_load(
        client.get(), text(name), texts.data(), texts.size(), &options, timeout_ms, &segment);
  }
  static void report(const gpushm_load_progress* how_far, void* context) {
    auto& self = *static_cast<loading*>(context);
    if (!self.progress->call(*how_far)) {
      gpushm_stop_request(self.stop);
    }
  }

  gpushm_stop* stop = nullptr;
};

nb::object load_tensors(client_object& self,
                        nb::handle paths,
                        const string& name,
                        nb::handle device,
                        std::optional<std::uint32_t> threads,
                        const string& reading,
                        const string& verify,
                        bool replace,
                        nb::handle tensors,
                        nb::handle slices,
                        std::optional<double> timeout,
                        nb::handle progress,
                        std::shared_ptr<stop_source> stop) {
  if (threads == 0) {
    throw nb::value_error("threads is 1 to 64");
  }
  auto work = std::make_shared<loading>();
  work->client = self.handle.get("load_tensors");
  work->name = name;
  work->device = to_device(device);
  work->paths = to_paths(paths);
  work->tensors = to_names(tensors);
  work->slices = to_slices(slices);
  work->options.device = text(work->device);
  work->options.threads = threads.value_or(0);
  work->options.reading = to_reading(reading);
  work->options.verify = to_verify(verify);
  work->options.replace = replace;
  work->timeout_ms = to_milliseconds(timeout);
  if (!progress.is_none()) {
    work->progress.emplace(progress);
    work->options.report = loading::report;
    work->options.report_context = work.get();
  }
  try {
    run_cancellable(stop, [work](gpushm_stop* wait_stop) { return work->run(wait_stop); });
  } catch (nb::python_error&) {
    if (work->progress.has_value()) {
      work->progress->end();
    }
    throw;
  }
  if (work->progress.has_value()) {
    work->progress->end();
  }
  return make_object<segment_object>(own_segment(std::exchange(work->segment, nullptr)),
                                     work->client);
}

nb::object open_tensors(client_object& self,
                        const string& name,
                        nb::handle device,
                        std::optional<double> timeout,
                        std::shared_ptr<stop_source> stop) {
  struct state {
    std::shared_ptr<gpushm_client> client;
    string name;
    string device;
    gpushm_open_options options = with_size<gpushm_open_options>();
    gpushm_segment* segment = nullptr;
    state() = default;
    state(const state&) = delete;
    state& operator=(const state&) = delete;
    ~state() { gpushm_segment_close(segment); }
  };
  auto work = std::make_shared<state>();
  work->client = self.handle.get("open_tensors");
  work->name = name;
  work->device = to_device(device);
  work->options.device = text(work->device);
  const std::int64_t timeout_ms = to_milliseconds(timeout);
  run_with_timeout(timeout_ms, stop, [work, timeout_ms](gpushm_stop* wait_stop) {
    work->options.stop = wait_stop;
    return gpushm_tensors_open(
        work->client.get(), text(work->name), &work->options, timeout_ms, &work->segment);
  });
  return make_object<segment_object>(own_segment(std::exchange(work->segment, nullptr)),
                                     work->client);
}

/// A table that the library has checked.
struct read_table {
  std::unique_ptr<gpushm_tensors_table, void (*)(gpushm_tensors_table*)> handle{
      nullptr, gpushm_tensors_table_free};
};

read_table read_table_of(const segment_object& self) {
  gpushm_tensors_table* raw = nullptr;
  call(self.handle.get("tensor_table"),
       [&](gpushm_segment* segment) { return gpushm_tensors_table_read(segment, &raw); });
  read_table result;
  result.handle.reset(raw);
  return result;
}

nb::str table_text(const read_table& self) {
  const gpushm_string read = gpushm_tensors_table_text(self.handle.get());
  return nb::str(read.data, read.size);
}

nb::str tensor_table(const segment_object& self) {
  return table_text(read_table_of(self));
}

/// The element types of a table that the caller passes on: by their names in it.
class wanted_types {
 public:
  explicit wanted_types(const nb::dict& names) {
    for (const auto& [in_table, name] : names) {
      if (const dtype* const type = find_dtype(nb::cast<string>(name))) {
        all_.emplace_back(nb::cast<string>(in_table), type);
      }
    }
  }
  [[nodiscard]] const dtype* find(std::string_view name) const {
    const auto at = std::find_if(
        all_.begin(), all_.end(), [&](const auto& each) { return each.first == name; });
    return at == all_.end() ? nullptr : at->second;
  }

 private:
  std::vector<std::pair<string, const dtype*>> all_;
};

nb::str to_str(const gpushm_string& text) {
  return nb::str(text.data, text.size);
}

gpushm_tensor tensor_at(const read_table& self, std::size_t index) {
  auto result = with_size<gpushm_tensor>();
  failure::of(gpushm_tensors_table_get(self.handle.get(), index, &result)).raise_if_any();
  return result;
}

/// Changes `into`, an array of the range. False: Python code makes the array, or says why there is
/// none.
bool place_tensor(array& into,
                  const memory_range& range,
                  const gpushm_tensor& tensor,
                  const wanted_types& types) {
  const dtype* const type = types.find({tensor.dtype.data, tensor.dtype.size});
  const std::span shape(reinterpret_cast<const std::int64_t*>(tensor.shape), tensor.rank);
  // The library has checked strides; a size may be larger than signed ones if another one is 0.
  const bool is_signed =
      std::all_of(shape.begin(), shape.end(), [](std::int64_t each) { return each >= 0; });
  if (type == nullptr || tensor.framework_dtype.size != 0 || !is_signed) {
    return false;
  }
  try {
    place(into,
          range,
          *type,
          shape,
          tensor.offset_bytes,
          tensor.strides == nullptr ? std::nullopt
                                    : std::optional(std::span(tensor.strides, tensor.rank)));
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

/// Calls `make` with each array; its result, or None, is that of the name.
template <typename Make>
nb::dict all_tensors(const read_table& self,
                     const segment_object& segment,
                     const nb::dict& names,
                     const Make& make) {
  const wanted_types types(names);
  const memory_range range = segment.range("view");
  array one = array_in(range, segment.ready);
  nb::dict result;
  const std::size_t count = gpushm_tensors_table_count(self.handle.get());
  for (std::size_t i = 0; i != count; ++i) {
    const gpushm_tensor from = tensor_at(self, i);
    result[to_str(from.name)] = place_tensor(one, range, from, types) ? make(one) : nb::none();
  }
  return result;
}

nb::dict exchange_all(const read_table& self,
                      const segment_object& segment,
                      const nb::dict& names,
                      nb::handle capsule) {
  const dl::exchange_table& table = table_in(capsule);
  return all_tensors(self, segment, names, [&](const array& each) -> nb::object {
    try {
      return exchange(each, table);
    } catch (const std::exception&) {
      return nb::none();
    }
  });
}

nb::dict all_arrays(const read_table& self, const segment_object& segment, const nb::dict& names) {
  return all_tensors(
      self, segment, names, [](const array& each) -> nb::object { return nb::cast(each); });
}

nb::list names_of(const read_table& self) {
  nb::list result;
  const std::size_t count = gpushm_tensors_table_count(self.handle.get());
  for (std::size_t i = 0; i != count; ++i) {
    result.append(to_str(tensor_at(self, i).name));
  }
  return result;
}

/// Returns nullopt if there is no tensor of that name, which may be any object.
std::optional<std::size_t> find_tensor(const read_table& self, nb::handle name) {
  if (!nb::isinstance<nb::str>(name)) {
    return std::nullopt;
  }
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(name.ptr(), &size);
  if (text == nullptr) {  // surrogates: no name has them
    PyErr_Clear();
    return std::nullopt;
  }
  std::size_t index = 0;
  const bool is_found =
      gpushm_tensors_table_find(self.handle.get(), {text, static_cast<std::size_t>(size)}, &index);
  return is_found ? std::optional(index) : std::nullopt;
}

bool contains(const read_table& self, nb::handle name) {
  return find_tensor(self, name).has_value();
}

template <typename Number>
nb::list to_list(const Number* numbers, std::size_t count) {
  nb::list result;
  for (std::size_t i = 0; i != count; ++i) {
    result.append(numbers[i]);
  }
  return result;
}

nb::dict entry_of(const read_table& self, nb::handle name) {
  const auto index = find_tensor(self, name);
  if (!index) {
    PyErr_SetObject(PyExc_KeyError, name.ptr());
    throw nb::python_error();
  }
  const gpushm_tensor from = tensor_at(self, *index);
  nb::dict result;
  result["dtype"] = to_str(from.dtype);
  result["shape"] = to_list(from.shape, from.rank);
  nb::list offsets;
  offsets.append(from.offset_bytes);
  offsets.append(from.offset_bytes + from.size_bytes);
  result["data_offsets"] = offsets;
  if (from.strides != nullptr) {
    result["strides"] = to_list(from.strides, from.rank);
  }
  if (from.framework_dtype.size != 0) {
    result["framework_dtype"] = to_str(from.framework_dtype);
  }
  return result;
}

nb::object metadata_of(const read_table& self) {
  const std::size_t count = gpushm_tensors_table_metadata_count(self.handle.get());
  if (count == 0) {
    return nb::none();
  }
  nb::dict result;
  for (std::size_t i = 0; i != count; ++i) {
    gpushm_string key{};
    gpushm_string value{};
    failure::of(gpushm_tensors_table_metadata_get(self.handle.get(), i, &key, &value))
        .raise_if_any();
    result[to_str(key)] = to_str(value);
  }
  return result;
}

void publish_tensors(segment_object& self, nb::handle table) {
  const string given = to_text(table);
  const auto of = self.handle.get("publish_tensors");
  call(of, [&](gpushm_segment* segment) { return gpushm_tensors_publish(segment, text(given)); });
  note_published(of.get(), true);
}

std::uint64_t tensors_size(nb::handle table) {
  const string given = to_text(table);
  std::uint64_t result = 0;
  failure failed;
  {
    const nb::gil_scoped_release released;
    failed = failure::of(gpushm_tensors_size(text(given), &result));
  }
  failed.raise_if_any();
  return result;
}

}  // namespace

void register_tensors_methods(nb::class_<client_object>& type) {
  type.def("load_tensors",
           load_tensors,
           nb::arg("paths"),
           nb::arg("name"),
           nb::kw_only(),
           nb::arg("device") = "auto",
           nb::arg("threads").none() = nb::none(),
           nb::arg("reading") = "auto",
           nb::arg("verify") = "auto",
           nb::arg("replace") = false,
           nb::arg("tensors").none() = nb::none(),
           nb::arg("slices").none() = nb::none(),
           nb::arg("timeout").none() = 3600.0,
           nb::arg("progress").none() = nb::none(),
           nb::arg("stop").none() = nb::none(),
           nb::sig(
               "def load_tensors(self, paths: str | bytes | os.PathLike[Any] | Sequence[str | "
               "bytes | os.PathLike[Any]], name: str, *, device: Device = 'auto', threads: int | "
               "None = None, reading: Literal['auto', 'cached', 'direct'] = 'auto', verify: "
               "Literal['auto', 'full'] = 'auto', replace: bool = False, "
               "tensors: Sequence[str] | None = None, slices: Mapping[str, tuple[int, ...] | "
               "Sequence[tuple[int, ...]]] | None = None, timeout: float | None = 3600.0, "
               "progress: "
               "Callable[[int, int, int, bool], object] | None = None, stop: Stop | None = "
               "None) -> Segment"),
           "Load safetensors files into a persistent segment, once for all processes that call "
           "this at\n"
           "the same time, and open it for reading. At once if the name has this model already.\n\n"
           "``paths``: files, an index (``*.index.json``), or a folder of a model. ``device``: as\n"
           ":meth:`create`. ``threads``: 1 to 64 that read; None: as many as there are CPUs, 8 to "
           "16.\n"
           "``reading``: ``\"cached\"``, ``\"direct\"`` (O_DIRECT), or ``\"auto\"``: direct if "
           "most of a file\n"
           "is not in the page cache. ``progress`` is called ten times a second with the bytes "
           "that are\n"
           "loaded, the bytes of all tensors, the bytes that a loader before has left, and whether "
           "this\n"
           "process reads; what it raises ends the load.\n\n"
           "``verify``: whether files are those of a model that is there: ``\"auto\"`` by size, "
           "times and\n"
           "inode, and where these differ by all bytes; ``\"full\"`` always by all bytes. "
           "``replace``: if the\n"
           "name has another model, or former contents of these files, the new one is loaded "
           "beside it\n"
           "and gets the name when it is complete; users of the former one keep that.\n\n"
           "``tensors``: names or patterns (as :mod:`fnmatch`) of those that are loaded; None: "
           "all. ``slices``:\n"
           "by names or patterns, ``(dim, begin, end)`` in elements, ``(dim, begin, end, parts)`` "
           "in equal\n"
           "parts (:func:`shard`), or a list of them: those of one dimension are joined in its "
           "order, as for\n"
           "fused matrices. What is loaded is contiguous. Each selection needs a name of its "
           "own.\n\n"
           "Raises gpushm.InvalidFileError (also if a file changes meanwhile), AlreadyExistsError "
           "(the name\n"
           "has another model or selection, or the files have changed since they were loaded),\n"
           "InvalidArgumentError (tensors or slices that the files do not have), ValueError, "
           "TypeError,\n"
           "TimedOutError, CancelledError, and as :meth:`create` and :meth:`open`.")
      .def("open_tensors",
           open_tensors,
           nb::arg("name"),
           nb::kw_only(),
           nb::arg("device").none() = nb::none(),
           nb::arg("timeout").none() = 0.0,
           nb::arg("stop").none() = nb::none(),
           nb::sig(
               "def open_tensors(self, name: str, *, device: Device | None = None, timeout: float "
               "| None = 0.0, stop: Stop | None = None) -> Segment"),
           "Open a segment with tensors for reading. Blocks until it is published and complete, at "
           "most\n"
           "``timeout`` seconds.\n\n"
           "Raises gpushm.InvalidArgumentError (it has no tensors), TimedOutError (it is still "
           "loaded, or\n"
           "its loader has died), and as :meth:`open`.");
}

void register_tensors_methods(nb::class_<segment_object>& type) {
  type.def("tensor_table",
           tensor_table,
           nb::sig("def tensor_table(self) -> str"),
           "The table of the tensors of a loaded model, or of :meth:`Client.put`, as JSON: as the "
           "header of\n"
           "a safetensors file, and a superset of it. All tensors are within the segment.\n\n"
           "Blocks while it is copied from a GPU. Raises gpushm.InvalidArgumentError (no tensors, "
           "or not\n"
           "complete), ProtocolError (a damaged or hostile table), UnsupportedVersionError.")
      .def(
          "publish_tensors",
          publish_tensors,
          nb::arg("table"),
          nb::sig("def publish_tensors(self, table: str | bytes) -> None"),
          "As :meth:`publish`, with a table of tensors (JSON); the size of the segment is that of\n"
          ":func:`gpushm.tensors_size`. Raises InvalidArgumentError, SizeMismatchError, and as\n"
          ":meth:`publish`.");
}

void register_tensors(nb::module_& module) {
  nb::class_<read_table>(module, "TensorTable", "A table of tensors that the library has checked.")
      .def("names",
           names_of,
           nb::sig("def names(self) -> list[str]"),
           "The names of the tensors in the order of their places.")
      .def("__contains__",
           contains,
           nb::arg("name").none(),
           nb::sig("def __contains__(self, name: object, /) -> bool"),
           "Whether there is a tensor of that name.")
      .def("entry",
           entry_of,
           nb::arg("name").none(),
           nb::sig("def entry(self, name: str, /) -> dict[str, Any]"),
           "One tensor, as in the table as JSON, without its hash. Raises KeyError.")
      .def("metadata",
           metadata_of,
           nb::sig("def metadata(self) -> dict[str, str] | None"),
           "The texts of ``__metadata__``, in the order of their keys; None without them.")
      .def("arrays",
           all_arrays,
           nb::arg("segment"),
           nb::arg("types"),
           nb::sig("def arrays(self, segment: Segment, types: dict[str, str], /) -> dict[str, "
                   "Array | None]"),
           "All tensors by name, in the order of their places. ``types``: names of element types,\n"
           "by their names in the table. None for a tensor of another type, or that has no array.")
      .def(
          "exchange",
          exchange_all,
          nb::arg("segment"),
          nb::arg("types"),
          nb::arg("table"),
          nb::sig(
              "def exchange(self, segment: Segment, types: dict[str, str], table: object, /) -> "
              "dict[str, Any]"),
          "All tensors by name, in the order of their places, as tensors of another library: see\n"
          "``exchange``. ``types``: names of element types, by their names in the table. None for\n"
          "a tensor of another type, or that cannot be exchanged.");
  module.def("read_tensor_table",
             read_table_of,
             nb::arg("segment"),
             nb::sig("def read_tensor_table(segment: Segment, /) -> TensorTable"),
             "The table of a segment, as Segment.tensor_table.");
  module.def("tensors_size",
             tensors_size,
             nb::arg("table"),
             nb::sig("def tensors_size(table: str | bytes) -> int"),
             "The size of a segment for :meth:`Segment.publish_tensors` with this table, whose\n"
             "``data_offsets`` are from the segment's first byte, at multiples of 256.\n\n"
             "Raises gpushm.InvalidArgumentError for a table that is not valid.");
}

}  // namespace gpushm_python
