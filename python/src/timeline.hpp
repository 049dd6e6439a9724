// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "gpushm/timeline.h"
#include "handle.hpp"

namespace gpushm_python {

/// Closes with its last reference; if a stream still waits for the timeline, after that wait has
/// ended. Does not need the GIL.
std::shared_ptr<gpushm_timeline> own_timeline(gpushm_timeline* timeline);

/// gpushm.Timeline.
struct timeline_object {
  explicit timeline_object(gpushm_timeline* timeline) : handle(own_timeline(timeline)) {}
  explicit timeline_object(std::shared_ptr<gpushm_timeline> timeline)
      : handle(std::move(timeline)) {}
  closable<gpushm_timeline> handle;
};

void register_timeline(nanobind::module_& module);

}  // namespace gpushm_python
