// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

namespace gpushm_python {

/// The coroutine of a function of gpushm/_aio.py. Needs the GIL.
template <typename... Arguments>
nanobind::object aio(const char* function, Arguments&&... arguments) {
  return nanobind::module_::import_("gpushm._aio")
      .attr(function)(std::forward<Arguments>(arguments)...);
}

}  // namespace gpushm_python
