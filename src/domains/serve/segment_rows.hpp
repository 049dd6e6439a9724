// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/domain.hpp"
#include "domains/protocol/messages.hpp"

namespace gpushm::domains {

/// The segments of a domain in some slots from `slot` on. On the broker's strand. Throws
/// std::bad_alloc.
[[nodiscard]] segment_page page_of_segments(const core::domain& domain, std::uint32_t slot);

}  // namespace gpushm::domains
