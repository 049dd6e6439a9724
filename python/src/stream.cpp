// SPDX-License-Identifier: Apache-2.0
#include "stream.hpp"

#include <cstdint>
#include <string>

namespace gpushm_python {
namespace {

namespace nb = nanobind;

void* from_integer(nb::handle stream) {
  const auto value = nb::cast<std::uintptr_t>(stream);
  // 1 is the driver's name for the legacy default stream, which is also what 0 means to it.
  return value == 1 ? nullptr : reinterpret_cast<void*>(value);
}

}  // namespace

void* to_stream(nb::handle stream) {
  if (nb::isinstance<nb::int_>(stream)) {
    return from_integer(stream);
  }
  // (version, handle): a method or an attribute.
  nb::object pair = nb::getattr(stream, "__cuda_stream__", nb::none());
  if (!pair.is_none()) {
    if (PyCallable_Check(pair.ptr()) != 0) {
      pair = pair();
    }
    return from_integer(pair[1]);
  }
  // PyTorch, CuPy, Numba.
  for (const char* attribute : {"cuda_stream", "ptr", "handle"}) {
    nb::object value = nb::getattr(stream, attribute, nb::none());
    if (nb::hasattr(value, "value")) {  // a ctypes pointer; None is the default stream
      value = value.attr("value");
      return value.is_none() ? nullptr : from_integer(value);
    }
    if (nb::isinstance<nb::int_>(value)) {
      return from_integer(value);
    }
  }
  const auto type = nb::cast<std::string>(nb::str(stream.type()));
  throw nb::type_error((type +
                        " is not a CUDA stream (pass its handle as an integer, or a stream of "
                        "PyTorch, CuPy, Numba or cuda.core)")
                           .c_str());
}

}  // namespace gpushm_python
