// SPDX-License-Identifier: Apache-2.0
#include "gil.hpp"

#include <dlfcn.h>

namespace gpushm_python {
namespace {

using current_thread = PyThreadState* (*)();

/// What PyGILState_Check uses, which the stable ABI does not have: the state of the thread that has
/// the GIL (since CPython 3.12: of this thread, if it has it). Looked up at run time, as the name
/// is another one since 3.13. Null: not found; the GIL is then kept.
current_thread find_current_thread() {
  for (const char* name : {"PyThreadState_GetUnchecked", "_PyThreadState_UncheckedGet"}) {
    if (void* const found = ::dlsym(RTLD_DEFAULT, name)) {
      return reinterpret_cast<current_thread>(found);
    }
  }
  return nullptr;
}

}  // namespace

bool has_gil() noexcept {
  static const current_thread current = find_current_thread();
  if (current == nullptr || Py_IsInitialized() == 0) {
    return false;
  }
  PyThreadState* const holder = current();
  return holder != nullptr && holder == PyGILState_GetThisThreadState();
}

}  // namespace gpushm_python
