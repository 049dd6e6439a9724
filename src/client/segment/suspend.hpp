// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpushm/types.hpp"

struct gpushm_segment;

namespace gpushm::client_detail {

/// Suspends the mapping of `segment`, for all its users in this process. Throws as
/// `gpushm_segment_suspend`.
void suspend(const gpushm_segment& segment, suspend_mode mode);
/// Throws as `gpushm_segment_resume`; the segment is suspended as before then.
void resume(const gpushm_segment& segment);

}  // namespace gpushm::client_detail
