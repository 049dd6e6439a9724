// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace gpushm_python {

/// The library's text for a `device` argument: a str, an integer, or a device object of PyTorch,
/// JAX, CuPy or cuda.core (gpushm/_devices.py). Empty for None. Raises TypeError, ValueError. Needs
/// the GIL.
std::string to_device(nanobind::handle device);

}  // namespace gpushm_python
