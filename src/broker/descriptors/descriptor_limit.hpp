// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gpushm::broker_detail {

/// Raises this process's soft limit of open files to the hard limit if `raise`. Returns the number
/// of descriptors left for clients: the limit minus those open now and minus `reserved`.
[[nodiscard]] std::uint64_t descriptors_for_clients(std::uint32_t reserved, bool raise);

}  // namespace gpushm::broker_detail
