// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include "array.hpp"

namespace gpushm_python {

/// `__dlpack_c_exchange_api__` of gpushm.Array: the exchange without Python calls.
void register_exchange_table(nanobind::class_<array>& type);
/// The same with the table of another library.
void register_exchange(nanobind::module_& module);

}  // namespace gpushm_python
