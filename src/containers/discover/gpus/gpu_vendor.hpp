// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace gpushm::discover {

/// The makers of GPUs that `generate` can describe.
enum class gpu_vendor : std::uint8_t { nvidia, amd, intel };

/// The short name: "nvidia", "amd", "intel".
[[nodiscard]] std::string_view to_string(gpu_vendor vendor) noexcept;
/// The name in CDI kinds: "nvidia.com", "amd.com", "intel.com".
[[nodiscard]] std::string_view cdi_name(gpu_vendor vendor) noexcept;
/// Accepts the short name and the name in kinds; nullopt for any other text.
[[nodiscard]] std::optional<gpu_vendor> parse_gpu_vendor(std::string_view text) noexcept;

}  // namespace gpushm::discover
