// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gpushm/segment.hpp"
#include "gpushm/types.hpp"

namespace gpushm::cli {

using fields = std::vector<std::pair<std::string, std::string>>;

/// 32 hexadecimal digits.
[[nodiscard]] std::string epoch_text(const epoch& value);
/// "host", or "GPU-… (0000:18:00.0, /dev/nvidia0)".
[[nodiscard]] std::string device_text(const device_id& device);
/// What people are shown of a mapped segment.
[[nodiscard]] fields segment_fields(const segment& mapped);
/// The same bytes as text when they are printable UTF-8 without control characters (tab and line
/// feed pass).
[[nodiscard]] bool is_printable(std::span<const std::byte> bytes);
[[nodiscard]] std::string as_text(std::span<const std::byte> bytes);
/// RFC 4648, with padding.
[[nodiscard]] std::string base64(std::span<const std::byte> bytes);

}  // namespace gpushm::cli
