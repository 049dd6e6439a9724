// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

namespace gpushm_python {

/// Calls a function of a module that is written in Python. Needs the GIL.
template <typename... Arguments>
nanobind::object in_python(const char* module, const char* function, Arguments&&... arguments) {
  return nanobind::module_::import_(module).attr(function)(std::forward<Arguments>(arguments)...);
}

/// The coroutine of a function of gpushm/_aio.py. Needs the GIL.
template <typename... Arguments>
nanobind::object aio(const char* function, Arguments&&... arguments) {
  return in_python("gpushm._aio", function, std::forward<Arguments>(arguments)...);
}

}  // namespace gpushm_python
