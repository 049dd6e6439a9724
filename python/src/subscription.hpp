// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "handle.hpp"

namespace gpushm_python {

/// gpushm.Subscription for names that begin with `prefix`. Needs the GIL.
nanobind::object make_subscription(std::shared_ptr<gpushm_client> client,
                                   const std::string& prefix);

/// Releases the list. Needs the GIL.
nanobind::list to_infos(gpushm_segment_list* list);

void register_subscription(nanobind::module_& module);

}  // namespace gpushm_python
