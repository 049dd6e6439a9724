// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "memory/remote_memory.hpp"
#include "memory/source.hpp"
#include "wire/messages.hpp"
#include "wire/ticket.hpp"

namespace gpushm::detail {

/// What a ticket says of memory that stays its exporter's; nothing for what travels as
/// descriptors.
[[nodiscard]] std::optional<memory::remote_memory> remote_of(const wire::ticket& described);

/// What `ticket` says of the segment that it came with. Throws invalid_ticket where it does not
/// fit.
[[nodiscard]] memory::remote_memory remote_for(const wire::segment& what,
                                               std::span<const std::byte> ticket);

/// A ticket for `found`, without a way that leads to what only a broker has.
[[nodiscard]] wire::ticket describe(const memory::source& found);

}  // namespace gpushm::detail
