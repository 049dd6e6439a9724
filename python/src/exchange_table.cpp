// SPDX-License-Identifier: Apache-2.0
#include "exchange_table.hpp"

#include <memory>
#include <new>

#include "exchange.hpp"

namespace gpushm_python {
namespace {

/// Runs `function`, and turns C++ exceptions into Python's, which the caller finds set.
template <typename Function>
int guarded(Function function) noexcept {
  try {
    function();
    return 0;
  } catch (nb::python_error& e) {
    e.restore();
  } catch (const nb::builtin_exception& e) {
    PyErr_SetString(PyExc_TypeError, e.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
  return -1;
}

const array& array_of(void* object) {
  const nb::handle handle(static_cast<PyObject*>(object));
  if (!nb::isinstance<array>(handle)) {
    throw nb::type_error("the object is not a gpushm.Array");
  }
  return *nb::inst_ptr<array>(handle);
}

int from_object(void* object, dl::managed_tensor_versioned** result) {
  return guarded([&] {
    const array& what = array_of(object);
    // This interface has no stream that could wait.
    require_ready_on_cpu(what);
    *result = export_versioned(what, false).release();
  });
}

int to_object(dl::managed_tensor_versioned* tensor, void** object) {
  return guarded([&] { *object = nb::cast(import_versioned(tensor)).release().ptr(); });
}

int describe(void* object, dl::tensor* result) {
  return guarded([&] {
    const array& array = array_of(object);
    require_ready_on_cpu(array);
    *result = {};
    result->data = array.elements() == 0 ? nullptr : array.data;
    result->device = array.device;
    result->ndim = static_cast<std::int32_t>(array.shape.size());
    result->dtype = array.type->dlpack();
    // Valid as long as the object is, which is immutable.
    result->shape = const_cast<std::int64_t*>(array.shape.data());
    result->strides = const_cast<std::int64_t*>(array.strides.data());
  });
}

int current_stream(std::int32_t /*device_type*/, std::int32_t /*device_id*/, void** stream) {
  *stream = nullptr;  // this library has no stream of its own: the default one
  return 0;
}

/// May be called without the GIL, and reports by `set_error`.
int allocate(dl::tensor* prototype,
             dl::managed_tensor_versioned** result,
             void* error_context,
             void (*set_error)(void*, const char*, const char*)) {
  const dtype* const type = find_dtype(prototype->dtype);
  if (prototype->device.type != dl::device_cpu || type == nullptr || prototype->ndim < 0) {
    set_error(error_context,
              "BufferError",
              "gpushm allocates tensors of its element types in host memory only");
    return -1;
  }
  try {
    array array;
    array.type = type;
    array.readonly = false;
    array.shape.assign(prototype->shape, prototype->shape + prototype->ndim);
    array.strides = contiguous_strides(array.shape);
    constexpr std::align_val_t alignment{256};
    void* const memory = ::operator new(array.bytes() + 1, alignment);
    array.owner =
        std::shared_ptr<void>(memory, [](void* last) { ::operator delete(last, alignment); });
    array.data = memory;
    *result = export_versioned(array, false).release();
    return 0;
  } catch (const std::exception& e) {
    set_error(error_context, "MemoryError", e.what());
    return -1;
  }
}

dl::exchange_table table{
    {dl::current, nullptr}, allocate, from_object, to_object, describe, current_stream};

}  // namespace

const dl::exchange_table& table_in(nb::handle capsule) {
  auto* header = static_cast<dl::exchange_header*>(
      PyCapsule_GetPointer(capsule.ptr(), dl::exchange_capsule_name));
  if (header == nullptr) {
    throw nb::python_error();
  }
  while (header->version.major != dl::current.major) {
    header = header->previous;
    if (header == nullptr) {
      raise_buffer_error("the library has no table of DLPack 1", "use its from_dlpack");
    }
  }
  return *reinterpret_cast<dl::exchange_table*>(header);
}

nb::object exchange(const array& array, const dl::exchange_table& table) {
  if (array.is_host()) {
    require_ready_on_cpu(array);
  } else if (array.ready.has_value() || array.arrival) {
    void* stream = nullptr;
    if (table.current_stream(array.device.type, array.device.id, &stream) != 0) {
      throw nb::python_error();
    }
    make_stream_wait(array, stream);
  }
  void* result = nullptr;
  // The tensor is the library's, whatever it returns. PyTorch 2.11 does not release one whose type
  // it lacks.
  if (table.to_object(export_versioned(array, false).release(), &result) != 0) {
    throw nb::python_error();
  }
  return nb::steal(static_cast<PyObject*>(result));
}

void register_exchange(nb::module_& module) {
  module.def(
      "exchange",
      [](const array& array, nb::handle capsule) { return exchange(array, table_in(capsule)); },
      nb::arg("array"),
      nb::arg("table"),
      nb::sig("def exchange(array: Array, table: object, /) -> Any"),
      "A tensor of another library on the memory of the array, as its ``from_dlpack`` makes "
      "it.\n"
      "``table``: ``__dlpack_c_exchange_api__`` of its tensors' type. Does not block: the "
      "library's\n"
      "current stream waits for :attr:`Array.ready`. Raises as :meth:`Array.__dlpack__`, and "
      "what\n"
      "the library raises.");
}

void register_exchange_table(nb::class_<array>& type) {
  type.attr("__dlpack_c_exchange_api__") =
      nb::steal(PyCapsule_New(&table, dl::exchange_capsule_name, nullptr));
}

}  // namespace gpushm_python
