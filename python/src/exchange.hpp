// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "array.hpp"
#include "dlpack.hpp"

namespace gpushm_python {

/// Makes the consumer's CUDA stream (null: the legacy default one) wait until the elements are
/// complete; never this thread. Needs the GIL.
void make_stream_wait(const array& view, void* stream);

/// A tensor for a consumer, which releases it by its deleter: on any thread, without the GIL, also
/// after the interpreter has ended. Copied: one in host memory that the consumer alone has.
std::unique_ptr<dl::managed_tensor_versioned, void (*)(dl::managed_tensor_versioned*)>
export_versioned(const array& view, bool copied);

/// Takes over a tensor of another library, and releases it when the array is no longer in use.
/// Raises BufferError for what gpushm cannot represent; the tensor is released then, too.
array import_versioned(dl::managed_tensor_versioned* tensor);

/// An array of an object with `__dlpack__`. `stream`: None, or what the protocol defines.
/// Raises TypeError, BufferError, and what the object raises. Needs the GIL.
array import_object(nanobind::handle object, nanobind::handle stream);

/// As import_object, for a copy: on a GPU, `stream` will use the memory (null: the legacy default
/// one).
array import_for_copy(nanobind::handle object, void* stream);

/// `__dlpack__` and `__cuda_array_interface__` of an array; arguments as the protocols define them.
/// Raise BufferError, AttributeError, and what a wait for the elements raises. Need the GIL.
nanobind::object to_dlpack(const array& array,
                           nanobind::handle stream,
                           nanobind::handle max_version,
                           nanobind::handle dl_device,
                           nanobind::handle copy);
nanobind::object cuda_array_interface(const array& array);
/// `__array__`: a NumPy array of host memory. Raises TypeError, BufferError. Needs the GIL.
nanobind::object to_numpy(array view, nanobind::handle dtype, nanobind::handle copy);

/// The docstrings of the methods by which other libraries take an object's memory.
struct exchange_docs {
  const char* dlpack;
  const char* dlpack_device;
  const char* cuda_array_interface;
  const char* array;
};
/// The docstrings of classes whose objects are taken as bytes.
inline constexpr exchange_docs docs_of_bytes{
    "As :meth:`Array.__dlpack__`, of the bytes (``uint8``).",
    "As :meth:`Array.__dlpack_device__`.",
    "As :attr:`Array.__cuda_array_interface__`, of the bytes.",
    "For NumPy. Raises TypeError for memory of a GPU."};

/// The methods by which other libraries take the memory of `to_array(object)`.
template <typename Object, typename ToArray>
void def_exchange(nanobind::class_<Object>& type, ToArray to_array, const exchange_docs& docs) {
  type.def(
          "__dlpack__",
          [to_array](const Object& self,
                     nanobind::handle stream,
                     nanobind::handle max_version,
                     nanobind::handle dl_device,
                     nanobind::handle copy) {
            return to_dlpack(to_array(self), stream, max_version, dl_device, copy);
          },
          nanobind::kw_only(),
          nanobind::arg("stream").none() = nanobind::none(),
          nanobind::arg("max_version").none() = nanobind::none(),
          nanobind::arg("dl_device").none() = nanobind::none(),
          nanobind::arg("copy").none() = nanobind::none(),
          nanobind::sig("def __dlpack__(self, *, stream: int | None = None, max_version: "
                        "tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, "
                        "copy: bool | None = None) -> CapsuleType"),
          docs.dlpack)
      .def(
          "__dlpack_device__",
          [to_array](const Object& self) {
            const dl::device device = to_array(self).device;
            return nanobind::make_tuple(device.type, device.id);
          },
          nanobind::sig("def __dlpack_device__(self) -> tuple[int, int]"),
          docs.dlpack_device)
      .def_prop_ro(
          "__cuda_array_interface__",
          [to_array](const Object& self) { return cuda_array_interface(to_array(self)); },
          nanobind::sig("def __cuda_array_interface__(self) -> dict[str, object]"),
          docs.cuda_array_interface)
      .def(
          "__array__",
          [to_array](const Object& self, nanobind::handle dtype, nanobind::handle copy) {
            return to_numpy(to_array(self), dtype, copy);
          },
          nanobind::arg("dtype").none() = nanobind::none(),
          nanobind::arg("copy").none() = nanobind::none(),
          nanobind::sig(
              "def __array__(self, dtype: object = None, copy: bool | None = None) -> object"),
          docs.array);
}

/// Methods and attributes of gpushm.Array.
void register_exchange(nanobind::class_<array>& type);
/// gpushm.from_dlpack.
void register_from_dlpack(nanobind::module_& module);

}  // namespace gpushm_python
