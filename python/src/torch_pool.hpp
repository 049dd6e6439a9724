// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace gpushm_python {

/// gpushm._core.TorchPool, and the C functions that PyTorch's CUDAPluggableAllocator looks up in
/// this module.
void register_torch_pool(nanobind::module_& module);

}  // namespace gpushm_python
