// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "gpushm/types.hpp"

namespace gpushm::cli {

/// Where the demo's segment is to be.
struct demo_place {
  std::string device;  ///< "host" or a UUID: the same for every process of the demo
  std::string name;    ///< "NVIDIA H200", or empty
  std::string remark;  ///< why "auto" became the host; empty otherwise
  device_kind kind = device_kind::host;
};
/// Resolves what the user wrote. Throws `error`: device_not_found, driver_unavailable,
/// driver_error.
[[nodiscard]] demo_place find_place(const std::string& device);

/// Memory that is free for a segment there; nothing when it is not known.
[[nodiscard]] std::optional<std::uint64_t> free_bytes(const demo_place& place);

/// The largest power of two up to `wanted` that takes at most three fifths of `free_bytes`, but at
/// least 1 MiB.
[[nodiscard]] std::uint64_t fitting_size(std::uint64_t wanted, std::uint64_t free_bytes);

}  // namespace gpushm::cli
