// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>

#include "array.hpp"
#include "handle.hpp"

namespace gpushm_python {

/// Closes with its last reference. `keep` is released after that: memory that is shared.
std::shared_ptr<gpushm_segment> own_segment(gpushm_segment* segment,
                                            std::shared_ptr<const void> keep = nullptr);

/// The memory of a segment, which owns it as long as the range exists.
memory_range range_of(std::shared_ptr<gpushm_segment> segment);

/// gpushm.Segment.
struct segment_object {
  segment_object(std::shared_ptr<gpushm_segment> segment, std::shared_ptr<gpushm_client> owner);

  /// Raises after close(), and if it is suspended. Needs the GIL.
  [[nodiscard]] memory_range range(const char* operation) const;
  /// All of its bytes, as elements of uint8. Raises after close(). Needs the GIL.
  [[nodiscard]] array bytes(const char* operation) const {
    return make_array(range(operation), *find_dtype("uint8"), nullptr, 0, nullptr, ready);
  }

  closable<gpushm_segment> handle;
  closable<gpushm_client> client;  ///< for timelines; empty: imported without a broker
  std::optional<readiness> ready;
};

void register_segment(nanobind::module_& module);

/// gpushm.SegmentInfo. Needs the GIL.
nanobind::object to_info(const gpushm_segment_info& info);

}  // namespace gpushm_python
