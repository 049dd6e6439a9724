// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace gpushm_python {

/// Whether this thread has the GIL. False once the interpreter has begun to end: then no other
/// thread can get it, and it is not to be released. Any thread may call this.
bool has_gil() noexcept;

/// Calls `function()`, which may block and must not throw, without the GIL, whether or not this
/// thread has it: for deleters of objects that Python, and foreign threads, give up.
template <typename Function>
void without_gil(Function function) noexcept {
  PyThreadState* const saved = has_gil() ? PyEval_SaveThread() : nullptr;
  function();
  if (saved != nullptr) {
    PyEval_RestoreThread(saved);
  }
}

}  // namespace gpushm_python
