// SPDX-License-Identifier: Apache-2.0
#include "exchange.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "copy.hpp"
#include "handle.hpp"
#include "in_python.hpp"
#include "stream.hpp"

namespace gpushm_python {
namespace {

// JAX aliases memory of the CPU only at multiples of 64; kernels like 256.
constexpr std::align_val_t copy_alignment{256};

/// A tensor that a consumer has. Refers to nothing of Python, so that it can be released on any
/// thread, without the GIL, after the interpreter has ended, and in a forked child.
struct exported {
  dl::managed_tensor_versioned versioned{};
  dl::managed_tensor plain{};
  std::shared_ptr<const void> owner;
  std::shared_ptr<gpushm_timeline> timeline;  // a stream may still wait for it
  /// The shape, then the strides: of almost all tensors without an allocation.
  static constexpr std::size_t few = 8;
  std::array<std::int64_t, few> few_numbers{};
  std::vector<std::int64_t> more_numbers;
};

dl::tensor describe(exported& into, const array& view, void* data) {
  const std::size_t rank = view.shape.size();
  if (2 * rank > exported::few) {
    into.more_numbers.resize(2 * rank);
  }
  std::int64_t* const numbers =
      2 * rank > exported::few ? into.more_numbers.data() : into.few_numbers.data();
  std::copy(view.shape.begin(), view.shape.end(), numbers);
  std::copy(view.strides.begin(), view.strides.end(), numbers + rank);
  dl::tensor result{};
  result.data = view.elements() == 0 ? nullptr : data;
  result.device = view.device;
  result.ndim = static_cast<std::int32_t>(rank);
  result.dtype = view.type->dlpack();
  result.shape = numbers;
  result.strides = numbers + rank;
  return result;
}

template <typename Managed>
void delete_exported(Managed* self) {
  const std::unique_ptr<exported> last(static_cast<exported*>(self->context));
}

std::unique_ptr<exported> make_exported(const array& view, bool copied) {
  auto result = std::make_unique<exported>();
  dl::tensor tensor{};
  if (copied) {
    const std::vector<std::byte> elements = copy_to_host(view);
    array copy = view;
    copy.device = {dl::device_cpu, 0};
    copy.strides = contiguous_strides(view.shape);
    void* const memory = ::operator new(elements.size() + 1, copy_alignment);
    result->owner = std::shared_ptr<void>(
        memory, [](void* pointer) { ::operator delete(pointer, copy_alignment); });
    if (!elements.empty()) {
      std::memcpy(memory, elements.data(), elements.size());
    }
    tensor = describe(*result, copy, memory);
  } else {
    result->owner = view.owner;
    result->timeline = view.ready.has_value() ? view.ready->timeline : nullptr;
    tensor = describe(*result, view, view.data);
  }
  result->versioned.version = dl::current;
  result->versioned.context = result.get();
  result->versioned.deleter = delete_exported<dl::managed_tensor_versioned>;
  result->versioned.flags = copied ? dl::flag_is_copied : view.readonly ? dl::flag_read_only : 0;
  result->versioned.tensor = tensor;
  result->plain.tensor = tensor;
  result->plain.context = result.get();
  result->plain.deleter = delete_exported<dl::managed_tensor>;
  return result;
}

/// A capsule that no consumer has taken over.
template <typename Managed>
void delete_capsule(PyObject* capsule, const char* name) {
  if (PyCapsule_IsValid(capsule, name) != 0) {
    auto* const tensor = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
    tensor->deleter(tensor);
  }
}

extern "C" void delete_versioned_capsule(PyObject* capsule) {
  delete_capsule<dl::managed_tensor_versioned>(capsule, dl::versioned_capsule_name);
}

extern "C" void delete_plain_capsule(PyObject* capsule) {
  delete_capsule<dl::managed_tensor>(capsule, dl::capsule_name);
}

nb::object to_capsule(std::unique_ptr<exported> tensor, bool versioned) {
  PyObject* const capsule =
      versioned
          ? PyCapsule_New(&tensor->versioned, dl::versioned_capsule_name, delete_versioned_capsule)
          : PyCapsule_New(&tensor->plain, dl::capsule_name, delete_plain_capsule);
  if (capsule == nullptr) {
    throw nb::python_error();
  }
  static_cast<void>(tensor.release());  // the capsule's
  return nb::steal(capsule);
}

/// `stream`: as Python passes it.
void make_stream_wait(const array& view, nb::handle stream) {
  if (!stream.is_none()) {
    const auto value = nb::cast<std::int64_t>(stream);
    if (value == -1) {
      return;  // the consumer orders its work itself
    }
    if (value == 0) {
      throw nb::value_error(
          "__dlpack__: stream 0 is not allowed (1 is the legacy default stream, 2 the per-thread "
          "one)");
    }
  }
  make_stream_wait(view, stream.is_none() ? nullptr : to_stream(stream));
}

/// Raises BufferError. A stride between the elements of fewer than two is not used: any will do.
void check_layout(array& view) {
  if (view.strides.size() != view.shape.size()) {
    raise_buffer_error("shape and strides have different lengths", "report it to its library");
  }
  for (std::size_t i = 0; i < view.shape.size(); ++i) {
    if (view.shape[i] < 0 || (view.strides[i] < 0 && view.shape[i] > 1)) {
      raise_buffer_error("gpushm has no negative shapes and strides",
                         "make a contiguous copy first");
    }
    if (view.shape[i] < 2) {
      view.strides[i] = std::max<std::int64_t>(view.strides[i], 0);
    }
  }
}

/// What both kinds of tensors have. Raises BufferError.
array to_array(const dl::tensor& tensor, bool readonly) {
  array result;
  result.type = find_dtype(tensor.dtype);
  if (result.type == nullptr) {
    raise_buffer_error("gpushm has no name for a DLPack type with code " +
                           std::to_string(tensor.dtype.code) + " and " +
                           std::to_string(tensor.dtype.bits) + " bits",
                       "view the bytes as uint8");
  }
  switch (tensor.device.type) {
    case dl::device_cpu:
    case dl::device_cuda_host:
      result.device = {dl::device_cpu, 0};
      break;
    case dl::device_cuda:
    case dl::device_cuda_managed:
      result.device = {dl::device_cuda, tensor.device.id};
      break;
    default:
      raise_buffer_error("gpushm does not use memory of DLPack's device type " +
                             std::to_string(tensor.device.type),
                         "copy it to the CPU or to a CUDA device");
  }
  if (tensor.ndim < 0) {
    raise_buffer_error("the tensor has a negative number of dimensions",
                       "report it to its library");
  }
  const auto dimensions = static_cast<std::size_t>(tensor.ndim);
  if (dimensions != 0) {
    result.shape.assign(tensor.shape, tensor.shape + dimensions);
  }
  result.strides = tensor.strides == nullptr || dimensions == 0
                       ? contiguous_strides(result.shape)
                       : std::vector<std::int64_t>(tensor.strides, tensor.strides + dimensions);
  check_layout(result);
  result.data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  result.readonly = readonly;
  return result;
}

/// A reference that any thread may give up, also when the interpreter has ended.
std::shared_ptr<const void> own_object(nb::handle object) {
  object.inc_ref();
  return {object.ptr(), [](PyObject* last) {
            if (Py_IsInitialized() != 0) {
              const PyGILState_STATE state = PyGILState_Ensure();
              Py_DecRef(last);
              PyGILState_Release(state);
            }
          }};
}

/// As CUDA numbers it in this process. `__cuda_array_interface__` does not say it. Raises
/// BufferError.
std::int32_t gpu_of(std::uintptr_t address) {
  // Loaded already: the memory is CUDA's.
  const std::shared_ptr<void> driver(::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD),
                                     [](void* library) {
                                       if (library != nullptr) {
                                         ::dlclose(library);
                                       }
                                     });
  using query = int (*)(void* data, int attribute, std::uint64_t pointer);
  const auto ask = driver == nullptr
                       ? nullptr
                       : reinterpret_cast<query>(::dlsym(driver.get(), "cuPointerGetAttribute"));
  constexpr int device_ordinal = 9;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
  int ordinal = -1;
  if (ask == nullptr || ask(&ordinal, device_ordinal, address) != 0 || ordinal < 0) {
    raise_buffer_error("CUDA does not know the array's address",
                       "make its GPU's context current, or pass an array of a GPU");
  }
  return ordinal;
}

/// Numba's arrays, for example. `stream`: as in import_object; the work on the memory must be
/// ordered before it.
array import_cuda_array(nb::handle object, const nb::dict& described, nb::handle stream) {
  nb::object busy = described.contains("stream") ? nb::object(described["stream"]) : nb::none();
  // The legacy default stream and the per-thread ones wait for each other.
  const bool is_ordered = busy.is_none() || nb::cast<std::int64_t>(busy) <= 2 ||
                          (!stream.is_none() && stream.equal(busy));
  if (!is_ordered) {
    raise_buffer_error("another stream still uses the array", "synchronise it, or pass stream=");
  }
  if (described.contains("mask") && !nb::object(described["mask"]).is_none()) {
    raise_buffer_error("the array has a mask", "pass an array without one");
  }
  array result;
  result.type = &find_dtype(described["typestr"]);
  const auto itemsize = static_cast<std::int64_t>(result.type->itemsize);
  for (const nb::handle each : nb::object(described["shape"])) {
    result.shape.push_back(nb::cast<std::int64_t>(each));
  }
  nb::object strides =
      described.contains("strides") ? nb::object(described["strides"]) : nb::none();
  if (strides.is_none()) {
    result.strides = contiguous_strides(result.shape);
  } else {
    for (const nb::handle each : strides) {
      const auto bytes = nb::cast<std::int64_t>(each);
      if (bytes % itemsize != 0) {
        raise_buffer_error("a stride is not a multiple of the elements' size",
                           "make a contiguous copy first");
      }
      result.strides.push_back(bytes / itemsize);
    }
  }
  check_layout(result);
  const nb::object data = described["data"];
  const auto address = nb::cast<std::uintptr_t>(nb::object(data[0]));
  result.data = reinterpret_cast<void*>(address);
  result.readonly = nb::cast<bool>(nb::object(data[1]));
  result.device = {dl::device_cuda, result.elements() == 0 ? 0 : gpu_of(address)};
  result.owner = own_object(object);
  return result;
}

template <typename Managed>
std::shared_ptr<const void> own(Managed* tensor) {
  return {tensor, [](Managed* last) {
            if (last->deleter != nullptr) {
              last->deleter(last);
            }
          }};
}

}  // namespace

nb::object to_dlpack(const array& self,
                     nb::handle stream,
                     nb::handle max_version,
                     nb::handle dl_device,
                     nb::handle copy) {
  dl::device wanted = self.device;
  if (!dl_device.is_none()) {
    wanted = {nb::cast<std::int32_t>(dl_device[0]), nb::cast<std::int32_t>(dl_device[1])};
  }
  const bool to_host = wanted == dl::device{dl::device_cpu, 0};
  if (wanted != self.device && !to_host) {
    raise_buffer_error("\"" + self.name + "\" cannot be exported to another GPU",
                       "open the segment with that device");
  }
  bool copied = wanted != self.device;
  if (!copy.is_none()) {
    const bool must = nb::cast<bool>(copy);
    if (!must && copied) {
      raise_buffer_error("memory of a GPU cannot be exported to the CPU without a copy",
                         "pass copy=None or copy=True");
    }
    copied = copied || must;
  }
  if (copied && !to_host) {
    raise_buffer_error("gpushm does not copy on a GPU",
                       "copy with the library that uses the array");
  }
  const bool versioned = !max_version.is_none() && nb::cast<int>(max_version[0]) >= 1;
  if (self.readonly && !self.unflagged && !copied && !versioned) {
    raise_buffer_error(
        "\"" + self.name + "\" is mapped for reading only, which DLPack before 1.0 cannot express",
        "pass max_version=(1, 0), or unflagged() of the array to a library that does not "
        "write, such as JAX");
  }
  if (!copied) {
    if (!self.is_host()) {
      make_stream_wait(self, stream);
    } else if (stream.is_none()) {
      require_ready_on_cpu(self);
    } else if (nb::cast<std::int64_t>(stream) != -1) {
      throw nb::value_error("__dlpack__: host memory has no stream; pass None");
    }
  }
  return to_capsule(make_exported(self, copied), versioned);
}

nb::object cuda_array_interface(const array& self) {
  if (self.is_host() || self.type->typestr == nullptr) {
    const std::string why = self.is_host()
                                ? "host memory"
                                : std::string(self.type->name) + ", for which it has no name";
    PyErr_SetString(PyExc_AttributeError, ("no __cuda_array_interface__ of " + why).c_str());
    throw nb::python_error();
  }
  nb::object stream = nb::none();
  if (self.arrival || (self.ready.has_value() && !is_ready(*self.ready))) {
    // The legacy default stream waits, and the consumer waits for that stream.
    make_stream_wait(self, nb::none());
    stream = nb::int_(1);
  }
  nb::list shape;
  nb::list strides;
  for (std::size_t i = 0; i < self.shape.size(); ++i) {
    shape.append(self.shape[i]);
    strides.append(self.strides[i] * static_cast<std::int64_t>(self.type->itemsize));
  }
  nb::dict result;
  result["shape"] = nb::tuple(shape);
  result["typestr"] = self.type->typestr;
  result["data"] = nb::make_tuple(
      self.elements() == 0 ? 0 : reinterpret_cast<std::uintptr_t>(self.data), self.readonly);
  result["version"] = 3;
  result["strides"] =
      self.is_contiguous() ? nb::object(nb::none()) : nb::object(nb::tuple(strides));
  result["stream"] = stream;
  return result;
}

void make_stream_wait(const array& view, void* stream) {
  if (view.arrival) {
    view.arrival(stream);
  }
  if (!view.ready.has_value() || is_ready(*view.ready)) {
    return;
  }
  call(view.ready->timeline, [&](gpushm_timeline* timeline) {
    return gpushm_timeline_wait_on(timeline, stream, view.ready->value, 0);
  });
}

std::unique_ptr<dl::managed_tensor_versioned, void (*)(dl::managed_tensor_versioned*)>
export_versioned(const array& view, bool copied) {
  exported* const tensor = make_exported(view, copied).release();
  return {&tensor->versioned, delete_exported<dl::managed_tensor_versioned>};
}

array import_versioned(dl::managed_tensor_versioned* tensor) {
  std::shared_ptr<const void> owner = own(tensor);
  if (tensor->version.major != dl::current.major) {
    raise_buffer_error(
        "the tensor has version " + std::to_string(tensor->version.major) + " of DLPack",
        "pass a tensor of version 1");
  }
  array result = to_array(tensor->tensor, (tensor->flags & dl::flag_read_only) != 0);
  result.owner = std::move(owner);
  return result;
}

array import_object(nb::handle object, nb::handle stream) {
  if (!nb::hasattr(object, "__dlpack__")) {
    nb::object described = nb::getattr(object, "__cuda_array_interface__", nb::none());
    if (nb::isinstance<nb::dict>(described)) {
      return import_cuda_array(object, nb::borrow<nb::dict>(described), stream);
    }
    const auto type = nb::cast<std::string>(nb::str(object.type()));
    throw nb::type_error((type + " has no __dlpack__").c_str());
  }
  nb::dict arguments;
  arguments["max_version"] = nb::make_tuple(dl::current.major, dl::current.minor);
  if (!stream.is_none()) {
    arguments["stream"] = stream;
  }
  nb::object capsule;
  try {
    capsule = object.attr("__dlpack__")(**arguments);
  } catch (nb::python_error& e) {
    if (!e.matches(PyExc_TypeError)) {
      throw;
    }
    PyDict_DelItemString(arguments.ptr(), "max_version");  // an older library
    capsule = object.attr("__dlpack__")(**arguments);
  }
  if (PyCapsule_IsValid(capsule.ptr(), dl::versioned_capsule_name) != 0) {
    auto* const tensor = static_cast<dl::managed_tensor_versioned*>(
        PyCapsule_GetPointer(capsule.ptr(), dl::versioned_capsule_name));
    PyCapsule_SetName(capsule.ptr(), dl::used_versioned_capsule_name);
    return import_versioned(tensor);
  }
  auto* const tensor =
      static_cast<dl::managed_tensor*>(PyCapsule_GetPointer(capsule.ptr(), dl::capsule_name));
  if (tensor == nullptr) {
    throw nb::python_error();
  }
  PyCapsule_SetName(capsule.ptr(), dl::used_capsule_name);
  std::shared_ptr<const void> owner = own(tensor);
  array result = to_array(tensor->tensor, false);
  result.owner = std::move(owner);
  return result;
}

array import_for_copy(nb::handle object, void* stream) {
  if (!nb::hasattr(object, "__dlpack_device__")) {
    return import_object(object, nb::none());
  }
  const nb::object device = object.attr("__dlpack_device__")();
  const auto type = nb::cast<std::int32_t>(nb::int_(device[0]));
  const bool is_gpu = type == dl::device_cuda || type == dl::device_cuda_managed;
  const auto handle = stream == nullptr ? 1 : reinterpret_cast<std::uintptr_t>(stream);
  return import_object(object, is_gpu ? nb::object(nb::int_(handle)) : nb::object(nb::none()));
}

nb::object to_numpy(array view, nb::handle dtype, nb::handle copy) {
  return in_python("gpushm._interop", "to_numpy", nb::cast(std::move(view)), dtype, copy);
}

void register_exchange(nb::class_<array>& type) {
  def_exchange(
      type,
      [](const array& self) -> const array& { return self; },
      {"A DLPack capsule, for ``from_dlpack`` of another library. It keeps the memory mapped.\n\n"
       "On a GPU ``stream`` (None and 1: the legacy default one, 2: the per-thread one, -1: no\n"
       "order wanted) waits until :attr:`ready` is reached; this call does not block. In host\n"
       "memory :attr:`ready` must be reached. ``copy=True``, and ``dl_device=(1, 0)`` for memory "
       "of\n"
       "a GPU, give a copy in host memory, and block until it is made.\n\n"
       "Raises BufferError for what cannot be exported so, gpushm.TooManyWaitsError if a stream\n"
       "cannot wait now, and gpushm.PeerDiedError if the timeline has ended before.",
       "DLPack's device type (1: host memory, 2: CUDA) and the device's ordinal.",
       "Version 3, for memory of a GPU and types that it can name; otherwise AttributeError.\n"
       "If :attr:`ready` is not reached, the legacy default stream waits for it, and is the\n"
       "stream that the consumer must wait for.",
       "For NumPy, if the buffer protocol has no format: needs ml_dtypes. Raises TypeError for\n"
       "memory of a GPU."});
}

void register_from_dlpack(nb::module_& module) {
  module.def(
      "from_dlpack",
      [](nb::handle object, nb::handle stream) { return import_object(object, stream); },
      nb::arg("tensor"),
      nb::kw_only(),
      nb::arg("stream").none() = nb::none(),
      nb::sig("def from_dlpack(tensor: object, /, *, stream: int | None = None) -> Array"),
      "An array on the memory of another library's tensor, which stays alive as long as the "
      "array:\n"
      "an object with ``__dlpack__`` or ``__cuda_array_interface__``.\n\n"
      "``stream``: the CUDA stream that will use the memory, as in :meth:`Array.__dlpack__`.\n"
      "Raises BufferError, TypeError, and what the tensor's ``__dlpack__`` raises.");
}

}  // namespace gpushm_python
