// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace gpushm_python {

/// gpushm.StreamBatch and gpushm.GraphOperations.
void register_stream_batch(nanobind::module_& module);

}  // namespace gpushm_python
