// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include "segment.hpp"

namespace gpushm_python {

/// gpushm.Window.
void register_window(nanobind::module_& module);
/// Methods of gpushm.Segment that make windows.
void register_window_methods(nanobind::class_<segment_object>& type);

}  // namespace gpushm_python
