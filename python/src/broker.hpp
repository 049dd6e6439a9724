// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace gpushm_python {

/// gpushm.Broker and gpushm.FileExport: brokers in this process.
void register_broker(nanobind::module_& module);

}  // namespace gpushm_python
