// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace gpushm_python {

/// The CUDA stream of an integer (0 and 1: the legacy default stream, 2: the per-thread one), or of
/// a stream object of PyTorch, CuPy, Numba or cuda.core. Raises TypeError. Needs the GIL.
void* to_stream(nanobind::handle stream);

}  // namespace gpushm_python
