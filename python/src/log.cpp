// SPDX-License-Identifier: Apache-2.0
#include "log.hpp"

#include "gpushm/gpushm.h"
#include "handle.hpp"

namespace gpushm_python {
namespace {

namespace nb = nanobind;

/// On any thread of the library, which holds no lock. The interpreter may have ended.
void to_python(void* user, gpushm_log_level level, gpushm_string line) {
  if (Py_IsInitialized() == 0) {
    return;
  }
  const nb::gil_scoped_acquire acquired;
  // An exception that is set already belongs to the code that has called the library.
  const nb::error_scope saved;
  try {
    nb::borrow(static_cast<PyObject*>(user))(static_cast<int>(level),
                                             nb::str(line.data, line.size));
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("gpushm's log");
  } catch (const std::exception&) {
    PyErr_Clear();  // a line that is not UTF-8
  }
}

void release(void* user) {
  if (user != nullptr && Py_IsInitialized() != 0) {
    const nb::gil_scoped_acquire acquired;
    Py_DecRef(static_cast<PyObject*>(user));
  }
}

}  // namespace

void register_log(nb::module_& module) {
  module.def(
      "set_log",
      [](nb::handle function) {
        if (function.is_none()) {
          call_released([] { return gpushm_set_log_sink(nullptr, nullptr, nullptr); });
        } else {
          function.inc_ref();
          call_released([&] { return gpushm_set_log_sink(to_python, function.ptr(), release); });
        }
      },
      nb::arg("function").none(),
      nb::sig("def set_log(function: Callable[[int, str], object] | None) -> None"),
      "Call ``function(level, text)`` for each line of the library's log, on any thread.");
}

}  // namespace gpushm_python
