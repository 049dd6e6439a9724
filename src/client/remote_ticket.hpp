// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "memory/remote_memory.hpp"
#include "memory/source.hpp"
#include "wire/ticket.hpp"

namespace gpushm::detail {

/// What a ticket says of memory that stays its exporter's; nothing for what travels as
/// descriptors.
[[nodiscard]] std::optional<memory::remote_memory> remote_of(const wire::ticket& described);

/// A ticket for `found`, without a way that leads to what only a broker has.
[[nodiscard]] wire::ticket describe(const memory::source& found);

}  // namespace gpushm::detail
