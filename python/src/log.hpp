// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace gpushm_python {

void register_log(nanobind::module_& module);

}  // namespace gpushm_python
