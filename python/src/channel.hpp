// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include "client.hpp"

namespace gpushm_python {

void register_channel(nanobind::module_& module);
/// Methods of gpushm.Client.
void register_channel_methods(nanobind::class_<client_object>& type);

}  // namespace gpushm_python
