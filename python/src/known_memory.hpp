// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

#include "gpushm/gpushm.h"

namespace gpushm_python {

/// Remembers where a segment is mapped, until it is closed. Does not keep it open. Does not need
/// the GIL; thread-safe, also with forks.
void remember_memory(const std::shared_ptr<gpushm_segment>& segment);
/// Before the segment is closed. Never throws.
void forget_memory(gpushm_segment* segment) noexcept;

/// Whether other processes cannot open it yet: of a segment that this process has made.
void note_published(gpushm_segment* segment, bool published) noexcept;
[[nodiscard]] bool is_unpublished(gpushm_segment* segment) noexcept;
/// The segment of this process that has all these bytes; null: none.
std::shared_ptr<gpushm_segment> find_memory(const void* first, std::uint64_t bytes);

void register_known_memory(nanobind::module_& module);

}  // namespace gpushm_python
