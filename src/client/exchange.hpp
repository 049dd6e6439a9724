// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "client/segment_impl.hpp"
#include "gpushm/exchange.hpp"
#include "wire/ticket.hpp"

namespace gpushm::detail {

/// What a ticket says of a segment of a broker. `socket_path`: see gpushm_export_segment.
[[nodiscard]] wire::broker_reference broker_reference_of(const segment_lease& lease,
                                                         std::string_view socket_path);

/// See gpushm_import_memory.
[[nodiscard]] segment_ptr import_ticket(std::span<const std::byte> ticket,
                                        const import_options& options);
/// See gpushm_import_file.
[[nodiscard]] segment_ptr import_ticket_file(const std::string& path,
                                             const import_options& options);
/// See gpushm_read_ticket_file.
[[nodiscard]] std::vector<std::byte> read_ticket(const std::string& path,
                                                 std::chrono::milliseconds timeout,
                                                 const std::stop_token& stop);

}  // namespace gpushm::detail
