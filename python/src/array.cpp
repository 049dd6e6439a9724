// SPDX-License-Identifier: Apache-2.0
#include "array.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

#include "buffer.hpp"
#include "copy.hpp"
#include "exchange.hpp"
#include "exchange_table.hpp"
#include "handle.hpp"
#include "in_python.hpp"
#include "known_memory.hpp"

namespace gpushm_python {
namespace {

// More than any framework accepts; bounds the work for a hostile shape.
constexpr std::size_t max_dimensions = 64;

std::vector<std::int64_t> to_integers(nb::handle sequence, const char* argument) {
  std::vector<std::int64_t> result;
  const auto add = [&](nb::handle item) {
    // __index__: also NumPy's integers; not floats.
    const nb::object index = nb::steal(PyNumber_Index(item.ptr()));
    if (!index.is_valid()) {
      throw nb::python_error();
    }
    const long long value = PyLong_AsLongLong(index.ptr());
    if (value == -1 && PyErr_Occurred() != nullptr) {
      throw nb::python_error();
    }
    if (value < 0) {
      throw nb::value_error((std::string(argument) + " must not be negative").c_str());
    }
    result.push_back(value);
  };
  if (PyIndex_Check(sequence.ptr()) != 0) {
    add(sequence);
    return result;
  }
  for (const nb::handle item : nb::iter(sequence)) {
    add(item);
    if (result.size() > max_dimensions) {
      throw nb::value_error((std::string(argument) + " has more than 64 dimensions").c_str());
    }
  }
  return result;
}

std::string tuple_text(std::span<const std::int64_t> values) {
  std::string result = "(";
  for (const std::int64_t value : values) {
    result += (result.size() > 1 ? ", " : "") + std::to_string(value);
  }
  return result + (values.size() == 1 ? ",)" : ")");
}

nb::tuple to_tuple(std::span<const std::int64_t> values) {
  nb::list list;
  for (const std::int64_t value : values) {
    list.append(value);
  }
  return nb::tuple(list);
}

[[noreturn]] void raise_outside(const memory_range& range, const std::string& access) {
  raise(GPUSHM_ERRC_SIZE_MISMATCH,
        "view",
        range.name,
        access + " are not within its " + std::to_string(range.bytes) + " bytes",
        "pass a shape, strides and an offset that fit");
}

std::string device_name(const array& self) {
  return self.is_host() ? "host" : "cuda:" + std::to_string(self.device.id);
}

std::string repr(const array& self) {
  std::string result = "<gpushm.Array shape=" + tuple_text(self.shape) +
                       " dtype=" + self.type->name + " device=" + device_name(self);
  if (!self.is_contiguous()) {
    result += " strides=" + tuple_text(self.strides);
  }
  result += self.readonly ? " read-only" : "";
  return result + (self.name.empty() ? ">" : " of \"" + self.name + "\">");
}

nb::object html(nb::handle object) {
  const auto& self = nb::cast<const array&>(object);
  const std::string state =
      self.segment == nullptr
          ? ""
          : to_string(gpushm_segment_state_name(gpushm_segment_current_state(self.segment.get())));
  return in_python("gpushm._html", "of_array", object, self.name, device_name(self), state);
}

nb::bytes to_bytes(const array& self) {
  const std::vector<std::byte> bytes = copy_to_host(self);
  return nb::bytes(bytes.data(), bytes.size());
}

nb::tuple reduce(const array& self) {
  if (self.of_window) {
    throw nb::type_error(
        "the array is of a window, whose addresses are of this process and show other segments "
        "later (pickle a view of the segment)");
  }
  if (self.segment == nullptr) {
    throw nb::type_error(
        "the array is not of a segment, so that no other process can open it (put() it, or share() "
        "its memory)");
  }
  if (is_unpublished(self.segment.get())) {
    raise(GPUSHM_ERRC_INVALID_ARGUMENT,
          "pickle",
          self.name,
          "the segment is not published, so that no other process can open it",
          "call its publish() first");
  }
  require_ready_on_cpu(self);
  gpushm_epoch epoch{};
  failure::of(gpushm_segment_epoch(self.segment.get(), &epoch)).raise_if_any();
  const auto* const begin = static_cast<const std::byte*>(gpushm_segment_data(self.segment.get()));
  return nb::make_tuple(nb::module_::import_("gpushm._shared").attr("open_array"),
                        nb::make_tuple(self.name,
                                       gpushm_segment_generation(self.segment.get()),
                                       nb::bytes(epoch.bytes, sizeof epoch.bytes),
                                       self.readonly ? "read" : "read-write",
                                       self.type->name,
                                       to_tuple(self.shape),
                                       to_tuple(self.strides),
                                       static_cast<const std::byte*>(self.data) - begin));
}

/// Other elements of the same memory: from the `offset`-th element of `self` on.
array rearrange(const array& self,
                std::vector<std::int64_t> shape,
                std::vector<std::int64_t> strides,
                std::int64_t offset) {
  array result = self;
  result.shape = std::move(shape);
  result.strides = std::move(strides);
  const auto is_negative = [](std::int64_t each) { return each < 0; };
  if (offset < 0 || result.shape.size() != result.strides.size() ||
      std::any_of(result.shape.begin(), result.shape.end(), is_negative) ||
      std::any_of(result.strides.begin(), result.strides.end(), is_negative)) {
    throw nb::value_error("a shape, strides or an offset that is negative, or of another length");
  }
  const auto begin = static_cast<std::uint64_t>(offset) * self.type->itemsize;
  if (begin + result.extent_bytes() > self.extent_bytes()) {
    throw nb::value_error("elements outside the array");
  }
  result.data = static_cast<std::byte*>(self.data) + begin;
  return result;
}

}  // namespace

std::int64_t array::elements() const noexcept {
  std::int64_t count = 1;
  for (const std::int64_t each : shape) {
    count *= each;
  }
  return count;
}

std::uint64_t array::extent_bytes() const noexcept {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) {
      return 0;
    }
    last += (shape[i] - 1) * strides[i];
  }
  return (static_cast<std::uint64_t>(last) + 1) * type->itemsize;
}

bool array::is_arranged_as(const array& other) const noexcept {
  if (shape != other.shape || extent_bytes() != bytes()) {
    return false;
  }
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] > 1 && strides[i] != other.strides[i]) {
      return false;
    }
  }
  return true;
}

bool array::is_contiguous() const noexcept {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) {
    return true;
  }
  std::int64_t expected = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) {
      return false;
    }
    expected *= shape[i];
  }
  return true;
}

namespace {

/// `strides` are as many as dimensions.
void write_contiguous(std::span<const std::int64_t> shape, std::span<std::int64_t> strides) {
  std::uint64_t stride = 1;  // overflows only if there are no elements
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = static_cast<std::int64_t>(stride);
    stride *= shape[i] == 0 ? 1 : static_cast<std::uint64_t>(shape[i]);
  }
}

void set_contiguous(array& array) {
  array.strides.resize(array.shape.size());
  write_contiguous(array.shape, array.strides);
}

}  // namespace

std::vector<std::int64_t> contiguous_strides(std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> result(shape.size());
  write_contiguous(shape, result);
  return result;
}

array make_array(const memory_range& range,
                 nb::handle dtype,
                 nb::handle shape,
                 std::uint64_t offset,
                 nb::handle strides,
                 std::optional<readiness> ready) {
  const gpushm_python::dtype& type = find_dtype(dtype);
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> steps;
  if (!shape.is_none()) {
    sizes = to_integers(shape, "shape");
  }
  if (!strides.is_none()) {
    steps = to_integers(strides, "strides");
  }
  return make_array(range,
                    type,
                    shape.is_none() ? nullptr : &sizes,
                    offset,
                    strides.is_none() ? nullptr : &steps,
                    std::move(ready));
}

array make_array(const memory_range& range,
                 const dtype& type,
                 const std::vector<std::int64_t>* shape,
                 std::uint64_t offset,
                 const std::vector<std::int64_t>* strides,
                 std::optional<readiness> ready) {
  array result = array_in(range, std::move(ready));
  if (shape != nullptr) {
    place(result,
          range,
          type,
          *shape,
          offset,
          strides == nullptr ? std::nullopt : std::optional(std::span(*strides)));
    return result;
  }
  if (strides != nullptr) {
    throw nb::value_error("strides need a shape");
  }
  const std::int64_t all =
      offset > range.bytes ? 0 : static_cast<std::int64_t>((range.bytes - offset) / type.itemsize);
  place(result, range, type, std::span(&all, 1), offset, std::nullopt);
  return result;
}

array array_in(const memory_range& range, std::optional<readiness> ready) {
  array result;
  result.owner = range.owner;
  result.segment = range.segment;
  result.device = range.device;
  result.readonly = range.readonly;
  result.of_window = range.of_window;
  result.ready = std::move(ready);
  result.name = range.name;
  return result;
}

void place(array& into,
           const memory_range& range,
           const dtype& type,
           std::span<const std::int64_t> shape,
           std::uint64_t offset,
           std::optional<std::span<const std::int64_t>> strides) {
  __extension__ using wide = __int128;
  into.type = &type;
  const wide itemsize = into.type->itemsize;
  if (offset > range.bytes) {
    raise_outside(range, "bytes from " + std::to_string(offset) + " on");
  }
  into.shape.assign(shape.begin(), shape.end());
  wide count = 1;
  for (const std::int64_t each : into.shape) {
    count *= each;
    if (count * itemsize > wide{INT64_MAX}) {
      raise_outside(range, "the elements of shape " + tuple_text(into.shape));
    }
  }
  if (!strides) {
    set_contiguous(into);
  } else {
    into.strides.assign(strides->begin(), strides->end());
    if (into.strides.size() != into.shape.size()) {
      throw nb::value_error("shape and strides have different lengths");
    }
  }
  wide last = 0;
  for (std::size_t i = 0; i < into.shape.size() && count != 0; ++i) {
    last += wide{into.shape[i] - 1} * into.strides[i];
    if ((last + 1) * itemsize > wide{INT64_MAX}) {
      break;
    }
  }
  if (count != 0 && (last + 1) * itemsize + wide{offset} > wide{range.bytes}) {
    raise_outside(range,
                  "the elements of shape " + tuple_text(into.shape) + " and dtype " +
                      into.type->name + " at offset " + std::to_string(offset));
  }
  if ((reinterpret_cast<std::uintptr_t>(range.data) + offset) % into.type->itemsize != 0) {
    throw nb::value_error(("offset " + std::to_string(offset) + " is not aligned for dtype " +
                           into.type->name + " (use a multiple of " +
                           std::to_string(into.type->itemsize) + ")")
                              .c_str());
  }
  into.data = static_cast<std::byte*>(range.data) + offset;
}

std::optional<readiness> to_readiness(nb::handle ready) {
  if (ready.is_none()) {
    return std::nullopt;
  }
  nb::object timeline;
  std::uint64_t value = 0;
  if (!nb::isinstance<nb::tuple>(ready) || nb::len(ready) != 2 ||
      !nb::isinstance<timeline_object>(timeline = ready[0]) || !nb::try_cast(ready[1], value)) {
    throw nb::type_error("ready is a pair of a gpushm.Timeline and the value to wait for, or None");
  }
  return readiness{nb::cast<timeline_object&>(timeline).handle.get("view"), value};
}

nb::object from_readiness(const std::optional<readiness>& readiness) {
  if (!readiness.has_value()) {
    return nb::none();
  }
  return nb::make_tuple(make_object<timeline_object>(readiness->timeline), readiness->value);
}

bool is_ready(const readiness& readiness) {
  bool reached = false;
  call(readiness.timeline, [&](gpushm_timeline* timeline) {
    return gpushm_timeline_wait(timeline, readiness.value, 0, nullptr, &reached);
  });
  return reached;
}

void require_arrived(const array& array) {
  if (array.has_arrived && !array.has_arrived()) {
    raise_buffer_error(
        std::string(array.early.part) + " of \"" + array.name + "\" " + array.early.state,
        array.early.next_step);
  }
}

void require_ready_on_cpu(const array& array) {
  require_arrived(array);
  if (!array.ready.has_value() || is_ready(*array.ready)) {
    return;
  }
  const std::string value = std::to_string(array.ready->value);
  raise_buffer_error(
      "the array of \"" + array.name + "\" is not ready: its timeline has not reached " + value,
      "call wait(" + value + ") of that timeline first; a CPU has no stream that could wait");
}

void register_array(nb::module_& module) {
  nb::class_<array> type(
      module,
      "Array",
      nb::is_final(),
      nb::type_slots(array_buffer_slots()),
      "Elements in shared memory, or in memory of another library: what NumPy, PyTorch, JAX and "
      "CuPy\n"
      "take without a copy (DLPack, the buffer protocol, ``__cuda_array_interface__``).\n\n"
      "Each array, and each tensor that another library makes of it, keeps the memory mapped and "
      "the\n"
      "lease alive. Immutable, and may be shared between threads; the elements are not protected.");
  type.def_prop_ro(
          "shape",
          [](const array& self) { return to_tuple(self.shape); },
          nb::sig("def shape(self) -> tuple[int, ...]"),
          "Number of elements of each dimension.")
      .def_prop_ro(
          "strides",
          [](const array& self) { return to_tuple(self.strides); },
          nb::sig("def strides(self) -> tuple[int, ...]"),
          "Distance of neighbours in each dimension, in elements.")
      .def_prop_ro(
          "dtype",
          [](const array& self) { return self.type->name; },
          nb::sig("def dtype(self) -> str"),
          "Name of the element type, such as ``\"bfloat16\"``.")
      .def_prop_ro(
          "itemsize",
          [](const array& self) { return self.type->itemsize; },
          nb::sig("def itemsize(self) -> int"),
          "Bytes of one element.")
      .def_prop_ro(
          "ndim",
          [](const array& self) { return self.shape.size(); },
          nb::sig("def ndim(self) -> int"),
          "Number of dimensions.")
      .def_prop_ro(
          "size", &array::elements, nb::sig("def size(self) -> int"), "Number of elements.")
      .def_prop_ro(
          "nbytes", &array::bytes, nb::sig("def nbytes(self) -> int"), "Bytes of all elements.")
      .def_prop_ro(
          "readonly",
          [](const array& self) { return self.readonly; },
          nb::sig("def readonly(self) -> bool"),
          "Whether the memory is mapped for reading only: a write ends the process (host), or\n"
          "the CUDA context.")
      .def_prop_ro("contiguous",
                   &array::is_contiguous,
                   nb::sig("def contiguous(self) -> bool"),
                   "Whether the elements are in C order without gaps.")
      .def_prop_ro(
          "data_ptr",
          [](const array& self) { return reinterpret_cast<std::uintptr_t>(self.data); },
          nb::sig("def data_ptr(self) -> int"),
          "Address of the first element: a device pointer on a GPU.")
      .def_prop_ro(
          "ready",
          [](const array& self) { return from_readiness(self.ready); },
          nb::sig("def ready(self) -> tuple[Timeline, int] | None"),
          "The timeline and the value for which consumers wait, or None.")
      .def("__repr__", repr, nb::sig("def __repr__(self) -> str"))
      .def("_repr_html_", html, nb::sig("def _repr_html_(self) -> str"), "For notebooks.")
      .def(
          "__len__",
          [](const array& self) {
            if (self.shape.empty()) {
              throw nb::type_error("an array without dimensions has no length");
            }
            return self.shape[0];
          },
          nb::sig("def __len__(self) -> int"))
      .def(
          "unflagged",
          [](const array& self) {
            array result = self;
            result.unflagged = true;
            return result;
          },
          nb::sig("def unflagged(self) -> Array"),
          "The same array, also for libraries that use DLPack before 1.0, which has no flag for "
          "what is\n"
          "mapped for reading only. For those that do not write, such as JAX.")
      .def(
          "view",
          [](const array& self, nb::handle type_of) {
            array result = self;
            result.type = &find_dtype(type_of);
            if (result.type->itemsize != self.type->itemsize) {
              throw nb::type_error((std::string("elements of ") + self.type->name + " and " +
                                    result.type->name + " have different sizes")
                                       .c_str());
            }
            return result;
          },
          nb::arg("dtype"),
          nb::sig("def view(self, dtype: object, /) -> Array"),
          "The same bytes as elements of another type of the same size. Raises TypeError.")
      .def(
          "numpy",
          [](nb::handle self) { return in_python("gpushm._arrays", "to", "numpy", self); },
          nb::sig("def numpy(self) -> Any"),
          "A NumPy array on these elements, without a copy; read-only if they are mapped so.\n\n"
          "Raises TypeError for memory of a GPU, BufferError if :attr:`ready` is not reached.")
      .def(
          "torch",
          [](nb::handle self) { return in_python("gpushm._arrays", "to", "torch", self); },
          nb::sig("def torch(self) -> Any"),
          "A tensor of PyTorch on these elements, without a copy. PyTorch has no read-only "
          "tensors: a\n"
          "write to :attr:`readonly` memory ends the process or the CUDA context.")
      .def(
          "jax",
          [](nb::handle self) { return in_python("gpushm._arrays", "to", "jax", self); },
          nb::sig("def jax(self) -> Any"),
          "An array of JAX on these elements, without a copy.")
      .def(
          "cupy",
          [](nb::handle self) { return in_python("gpushm._arrays", "to", "cupy", self); },
          nb::sig("def cupy(self) -> Any"),
          "An array of CuPy on these elements, without a copy.")
      .def(
          "item",
          [](nb::handle self) { return in_python("gpushm._arrays", "item", self); },
          nb::sig("def item(self) -> Any"),
          "The only element, as a number of Python. Raises ValueError if there are others.")
      .def(
          "__float__",
          [](nb::handle self) { return nb::float_(self.attr("item")()); },
          nb::sig("def __float__(self) -> float"))
      .def(
          "__int__",
          [](nb::handle self) { return nb::int_(self.attr("item")()); },
          nb::sig("def __int__(self) -> int"))
      .def(
          "__getitem__",
          [](nb::handle self, nb::handle index) {
            return in_python("gpushm._arrays", "part", self, index);
          },
          nb::arg("index").none(),
          nb::sig("def __getitem__(self, index: Any, /) -> Array"),
          "A view of a part: integers, slices with a positive step, ``None`` and ``...``. Raises "
          "IndexError.")
      .def(
          "__setitem__",
          [](nb::handle self, nb::handle index, nb::handle value) {
            in_python("gpushm._arrays", "set_part", self, index, value);
          },
          nb::arg("index").none(),
          nb::arg("value").none(),
          nb::sig("def __setitem__(self, index: Any, value: Any, /) -> None"),
          "Overwrite a part: in host memory as NumPy does, on a GPU as :meth:`copy_from`. Raises\n"
          "ValueError for what is mapped for reading only.")
      .def(
          "reshape",
          [](nb::handle self, const nb::args& shape) {
            return in_python("gpushm._arrays", "reshape", self, shape);
          },
          nb::sig("def reshape(self, *shape: int | Sequence[int]) -> Array"),
          "The same elements in another shape, one dimension of which may be -1. Raises ValueError "
          "for an\n"
          "array that is not contiguous, or a shape of another number of elements.")
      .def(
          "tobytes",
          to_bytes,
          nb::sig("def tobytes(self) -> bytes"),
          "A copy of the elements in C order.\n\n"
          "Blocks until a GPU has copied them. Raises BufferError if :attr:`ready` is not reached.")
      .def(
          "copy_from",
          [](const array& self, nb::handle source) { copy_into(self, source); },
          nb::arg("source"),
          nb::sig("def copy_from(self, source: object, /) -> None"),
          "Overwrite the elements with those of ``source``, which has as many, of the same type: "
          "an object\n"
          "with the buffer protocol or ``__dlpack__``, in host memory or, contiguous, on any GPU. "
          "Bytes\n"
          "(``bytes``, ``bytearray``, a file's ``mmap``) are taken as they are; nothing is "
          "converted.\n\n"
          "This array is contiguous; or it has no gaps, and the source the same shape and "
          "strides.\n"
          "Blocks until a GPU has copied them. Raises ValueError, TypeError, BufferError.")
      .def("__reduce__",
           reduce,
           nb::sig("def __reduce__(self) -> tuple[Any, ...]"),
           "Pickles the place in a published segment, which the receiver opens by name "
           "(SharedTensor).\n\n"
           "Raises TypeError for memory of another library or of a window, "
           "gpushm.InvalidArgumentError\n"
           "for a segment that is not published, BufferError if :attr:`ready` is not reached.");
  register_exchange(type);
  register_exchange_table(type);
  module.def("rearrange",
             rearrange,
             nb::arg("array"),
             nb::arg("shape"),
             nb::arg("strides"),
             nb::arg("offset"),
             nb::sig("def rearrange(array: Array, shape: Sequence[int], strides: Sequence[int], "
                     "offset: int) -> Array"),
             "Other elements of the same memory, from the ``offset``-th element of ``array`` on. "
             "Raises ValueError\n"
             "for elements outside ``array``.");
}

}  // namespace gpushm_python
