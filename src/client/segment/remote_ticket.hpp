// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "client/lease/segment_lease.hpp"
#include "gpu/memory/sources/remote_memory.hpp"
#include "gpu/memory/sources/source.hpp"
#include "protocol/wire/messages.hpp"
#include "protocol/wire/ticket.hpp"

namespace gpushm::client_detail {

/// Returns the ticket's description of memory bound to its exporter; nothing for memory that is
/// shared as descriptors.
[[nodiscard]] std::optional<memory::remote_memory> remote_of(const wire::ticket& described);

/// Returns the description in `ticket` of the segment that it came with. Throws invalid_ticket if
/// they do not match.
[[nodiscard]] memory::remote_memory remote_for(const wire::segment& segment,
                                               std::span<const std::byte> ticket);

/// Returns a ticket for `source`, without what only a broker can provide.
[[nodiscard]] wire::ticket describe(const memory::source& source);

/// The description of a broker's segment in a ticket. `socket_path`: see gpushm_export_segment.
[[nodiscard]] wire::broker_reference broker_reference_of(const segment_lease& lease,
                                                         std::string_view socket_path);

}  // namespace gpushm::client_detail
