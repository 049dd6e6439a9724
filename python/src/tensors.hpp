// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include "client.hpp"
#include "segment.hpp"

namespace gpushm_python {

/// Methods of gpushm.Client: load_tensors, open_tensors.
void register_tensors_methods(nanobind::class_<client_object>& type);
/// Methods of gpushm.Segment: tensor_table, publish_tensors.
void register_tensors_methods(nanobind::class_<segment_object>& type);
/// gpushm.tensors_size, gpushm._core.TensorTable.
void register_tensors(nanobind::module_& module);

}  // namespace gpushm_python
