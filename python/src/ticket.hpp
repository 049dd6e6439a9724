// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include "segment.hpp"
#include "timeline.hpp"

namespace gpushm_python {

/// Functions and gpushm.TicketFile.
void register_tickets(nanobind::module_& module);
/// Methods `ticket`.
void register_ticket_methods(nanobind::class_<segment_object>& type);
void register_ticket_methods(nanobind::class_<timeline_object>& type);

}  // namespace gpushm_python
