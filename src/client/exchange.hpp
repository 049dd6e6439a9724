// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "client/segment_impl.hpp"
#include "gpushm/exchange.hpp"

namespace gpushm::detail {

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
