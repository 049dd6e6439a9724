// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include "array.hpp"
#include "dlpack.hpp"

namespace gpushm_python {

/// `__dlpack_c_exchange_api__` of gpushm.Array: the exchange without Python calls.
void register_exchange_table(nanobind::class_<array>& type);
/// The table of another library's capsule. Raises ValueError, BufferError. Needs the GIL.
const dl::exchange_table& table_in(nanobind::handle capsule);
/// A tensor of the library whose table this is: without its Python code, which for memory of a GPU
/// takes longer than all else (it names the current stream for each tensor). Does not block. Raises
/// BufferError, and what the library raises. Needs the GIL.
nanobind::object exchange(const array& array, const dl::exchange_table& table);
/// gpushm._core.exchange.
void register_exchange(nanobind::module_& module);

}  // namespace gpushm_python
