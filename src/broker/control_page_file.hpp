// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.hpp"
#include "gpushm/types.hpp"

namespace gpushm::broker_detail {

/// A new control page: allocated, header written, sealed. Throws out_of_memory,
/// too_many_descriptors.
[[nodiscard]] base::unique_fd make_control_page(const gpushm::epoch& epoch,
                                                gpushm::generation generation);

}  // namespace gpushm::broker_detail
