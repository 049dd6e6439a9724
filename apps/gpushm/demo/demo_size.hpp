// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "gpushm/types.hpp"

namespace gpushm::cli {

/// The device for the demo's segment.
struct demo_place {
  std::string device;  ///< "host" or a UUID: the same for every process of the demo
  std::string name;    ///< "NVIDIA H200", or empty
  std::string remark;  ///< why "auto" selected the host; empty otherwise
  device_kind kind = device_kind::host;
};
/// Resolves the value of --device. Throws `error`: device_not_found, driver_unavailable,
/// driver_error.
[[nodiscard]] demo_place find_place(const std::string& device);

/// Memory that is free for a segment on the device; empty if unknown.
[[nodiscard]] std::optional<std::uint64_t> free_bytes(const demo_place& place);

/// Returns `requested` if it is at most three fifths of `free_bytes`, else the largest power of two
/// that is, but at least 1 MiB.
[[nodiscard]] std::uint64_t fitting_size(std::uint64_t requested, std::uint64_t free_bytes);

}  // namespace gpushm::cli
