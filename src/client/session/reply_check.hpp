// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "protocol/wire/messages.hpp"

namespace gpushm::client_detail {

/// Throws protocol_error unless the numbers of an `Opened` with `descriptors` descriptors are
/// consistent with each other, its request for `name`, and `expected_size_bytes` (0: any). A broker
/// is trusted, but a ticket may name a broker other than the node's, and mapping depends on these
/// numbers.
void check_opened(const wire::opened& reply,
                  std::size_t descriptors,
                  std::string_view name,
                  std::uint64_t expected_size_bytes);

}  // namespace gpushm::client_detail
