// SPDX-License-Identifier: Apache-2.0
#include "buffer.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "array.hpp"
#include "segment.hpp"

namespace gpushm_python {
namespace {

namespace nb = nanobind;

// The limited API declares these names since 3.11; CPython 3.10 accepts the numbers.
constexpr int slot_getbuffer = 1;
constexpr int slot_releasebuffer = 2;
// PyBUF_*: the same.
constexpr int flag_writable = 0x1;
constexpr int flag_format = 0x4;
constexpr int flag_nd = 0x8;
constexpr int flag_strides = 0x10 | flag_nd;
constexpr int flag_c_contiguous = 0x20 | flag_strides;
constexpr int flag_f_contiguous = 0x40 | flag_strides;
constexpr int flag_any_contiguous = 0x80 | flag_strides;
constexpr int flag_simple = 0;

/// What an exported buffer keeps.
struct export_state {
  std::shared_ptr<const void> owner;
  std::vector<Py_ssize_t> shape;
  std::vector<Py_ssize_t> strides;  // in bytes
};

bool has(int flags, int wanted) {
  return (flags & wanted) == wanted;
}

bool is_fortran_contiguous(const array& view) {
  array reversed = view;
  std::reverse(reversed.shape.begin(), reversed.shape.end());
  std::reverse(reversed.strides.begin(), reversed.strides.end());
  return reversed.is_contiguous();
}

void fill(PyObject* self, py_buffer& view, int flags, const array& array) {
  if (!array.is_host()) {
    raise_buffer_error("the memory of \"" + array.name + "\" is on a GPU",
                       "use from_dlpack of a library for GPUs, or tobytes()");
  }
  if (array.type->format == nullptr) {
    raise_buffer_error(std::string("the buffer protocol has no format for ") + array.type->name,
                       "use from_dlpack, or view the bytes as uint8 or uint16");
  }
  if (has(flags, flag_writable) && array.readonly) {
    raise_buffer_error("\"" + array.name + "\" is mapped for reading only",
                       "open it with access=\"read-write\"");
  }
  require_ready_on_cpu(array);
  // Who does not ask for strides, or asks for this order, reads `len` bytes in it.
  const bool in_c_order = array.is_contiguous();
  const bool in_f_order = is_fortran_contiguous(array);
  const bool needs_c_order = !has(flags, flag_strides) || has(flags, flag_c_contiguous);
  if ((needs_c_order && !in_c_order) || (has(flags, flag_f_contiguous) && !in_f_order) ||
      (has(flags, flag_any_contiguous) && !in_c_order && !in_f_order)) {
    raise_buffer_error(has(flags, flag_f_contiguous) && !needs_c_order
                           ? "the array is not contiguous in Fortran's order"
                           : "the array is not contiguous",
                       "ask for a buffer with strides");
  }
  auto state = std::make_unique<export_state>();
  state->owner = array.owner;
  const auto itemsize = static_cast<Py_ssize_t>(array.type->itemsize);
  for (std::size_t i = 0; i < array.shape.size(); ++i) {
    state->shape.push_back(array.shape[i]);
    state->strides.push_back(array.strides[i] * itemsize);
  }
  view = {};
  view.buf = array.data;
  view.len = static_cast<Py_ssize_t>(array.bytes());
  view.itemsize = itemsize;
  view.readonly = array.readonly ? 1 : 0;
  view.ndim = has(flags, flag_nd) ? static_cast<int>(state->shape.size()) : 1;
  if (has(flags, flag_format)) {
    view.format = const_cast<char*>(array.type->format);
  }
  if (has(flags, flag_nd)) {
    view.shape = state->shape.data();
  }
  if (has(flags, flag_strides)) {
    view.strides = state->strides.data();
  }
  view.internal = state.release();
  view.obj = nb::borrow(self).release().ptr();
}

template <typename Fill>
int get_buffer(PyObject* self, void* into, int flags, Fill make) {
  auto& view = *static_cast<py_buffer*>(into);
  try {
    fill(self, view, flags, make());
    return 0;
  } catch (nb::python_error& e) {
    e.restore();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_BufferError, e.what());
  }
  // An exception of this library's own classes is not what callers of this protocol expect.
  if (PyErr_ExceptionMatches(PyExc_BufferError) == 0) {
    nb::chain_error(PyExc_BufferError, "gpushm: the memory cannot be exported");
  }
  view.obj = nullptr;
  return -1;
}

extern "C" int array_getbuffer(PyObject* self, void* view, int flags) {
  return get_buffer(
      self, view, flags, [&]() -> const array& { return *nb::inst_ptr<array>(nb::handle(self)); });
}

extern "C" int segment_getbuffer(PyObject* self, void* view, int flags) {
  return get_buffer(self, view, flags, [&] {
    return nb::inst_ptr<segment_object>(nb::handle(self))->bytes("buffer");
  });
}

extern "C" void release_buffer(PyObject* /*self*/, void* view) {
  std::unique_ptr<export_state> state(
      static_cast<export_state*>(static_cast<py_buffer*>(view)->internal));
  const nb::gil_scoped_release released;  // unmapping can take long
  state.reset();
}

template <typename Function>
void* slot(Function* function) {
  return reinterpret_cast<void*>(function);
}

using get_function = int (*)(PyObject*, py_buffer*, int);
using release_function = void (*)(py_buffer*);

// In the stable ABI since 3.11, and exported by CPython 3.10 with the same meaning. Looked up at
// run time, so that the module needs only what the stable ABI of 3.10 has.
get_function get() {
  static const auto function =
      reinterpret_cast<get_function>(::dlsym(RTLD_DEFAULT, "PyObject_GetBuffer"));
  return function;
}

release_function release() {
  static const auto function =
      reinterpret_cast<release_function>(::dlsym(RTLD_DEFAULT, "PyBuffer_Release"));
  return function;
}

}  // namespace

const PyType_Slot* array_buffer_slots() {
  static const std::array<PyType_Slot, 3> slots{{{slot_getbuffer, slot(array_getbuffer)},
                                                 {slot_releasebuffer, slot(release_buffer)},
                                                 {0, nullptr}}};
  return slots.data();
}

const PyType_Slot* segment_buffer_slots() {
  static const std::array<PyType_Slot, 3> slots{{{slot_getbuffer, slot(segment_getbuffer)},
                                                 {slot_releasebuffer, slot(release_buffer)},
                                                 {0, nullptr}}};
  return slots.data();
}

std::optional<buffer_view> buffer_view::of(nb::handle object, wanted view) {
  if (get() == nullptr || release() == nullptr) {
    return std::nullopt;
  }
  buffer_view result;
  if (get()(object.ptr(),
            &result.buffer_,
            view == wanted::elements ? flag_nd | flag_format : flag_simple) == 0) {
    return result;
  }
  result.buffer_.obj = nullptr;
  if (PyErr_ExceptionMatches(PyExc_TypeError) != 0) {  // no such protocol
    PyErr_Clear();
    return std::nullopt;
  }
  throw nb::python_error();
}

buffer_view::buffer_view(buffer_view&& other) noexcept : buffer_(other.buffer_) {
  other.buffer_ = {};
}

buffer_view::~buffer_view() {
  if (buffer_.obj != nullptr) {
    release()(&buffer_);
  }
}

std::span<const std::byte> buffer_view::bytes() const noexcept {
  return {static_cast<const std::byte*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)};
}

}  // namespace gpushm_python
