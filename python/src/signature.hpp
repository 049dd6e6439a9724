// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace gpushm_python {

/// Replaces the functions and methods of a module, which are complete, by objects that call them
/// and have what `inspect.signature` needs: nanobind's types of functions have no signature and
/// cannot get one. The replaced function is `__wrapped__` of its object. Needs the GIL.
void add_signatures(nanobind::module_& module);

}  // namespace gpushm_python
