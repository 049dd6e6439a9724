// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gpushm::base {

/// "1.5GiB", "64MiB", "4096", "10kB" → bytes. Binary units (KiB, MiB, GiB, TiB; also K, M,
/// G, T) in any case, decimal ones as kB, KB, MB, GB and TB only; optional blank before the unit.
/// Returns nullopt if `text` is not a size, or not a whole number of bytes below 2^64.
[[nodiscard]] std::optional<std::uint64_t> parse_size(std::string_view text);

/// "1.5 GiB", "64 MiB", "512 B": at most two decimals, for display. Not meant to be parsed back.
[[nodiscard]] std::string size_text(std::uint64_t bytes);

}  // namespace gpushm::base
