// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "client.hpp"

namespace gpushm_python {

/// "host", or a UUID.
std::string device_text(const gpushm_device& device);

/// Methods of gpushm.Client: cache_stats, channel_status, unfence.
void register_status_methods(nanobind::class_<client_object>& type);
/// gpushm.describe_ticket, gpushm.waiting_streams.
void register_status(nanobind::module_& module);

}  // namespace gpushm_python
