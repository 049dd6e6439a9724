// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/segment/segment_impl.hpp"
#include "client/timeline/timeline_impl.hpp"
#include "gpushm/exchange.hpp"

namespace gpushm::client_detail {

/// See gpushm_export_memory.
[[nodiscard]] std::vector<std::byte> export_memory(void* pointer, std::uint64_t size_bytes);
/// See gpushm_export_segment.
[[nodiscard]] std::vector<std::byte> export_segment(const gpushm_segment& segment,
                                                    std::string_view socket_path);
/// See gpushm_timeline_create_local.
[[nodiscard]] std::unique_ptr<gpushm_timeline> create_local_timeline();
/// See gpushm_import_timeline.
[[nodiscard]] std::unique_ptr<gpushm_timeline> import_timeline(std::span<const std::byte> ticket,
                                                               const std::string& directory);
/// See gpushm_import_memory.
[[nodiscard]] segment_ptr import_ticket(std::span<const std::byte> ticket,
                                        const import_options& options);

}  // namespace gpushm::client_detail
