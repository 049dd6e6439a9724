// SPDX-License-Identifier: Apache-2.0
#pragma once

// What is read and written about devices as text. Pure functions: no driver, no files.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace gpushm::driver {

/// What the kernel module says of a GPU in /proc/driver/nvidia/gpus/<pci>/information.
struct gpu_information {
  std::int32_t minor = -1;  ///< "Device Minor:"; -1 when not said
  std::string uuid;         ///< "GPU UUID:"; empty when not said or hidden behind question marks
};
[[nodiscard]] gpu_information parse_gpu_information(std::string_view text);

/// "0000:18:00.0" in lower case with a domain of four digits (more only when it needs more), from
/// what CUDA ("0000:18:00.0") or NVML ("00000000:18:00.0") says. Nothing when it is not a PCI
/// address.
[[nodiscard]] std::optional<std::string> normal_pci_address(std::string_view text);

/// The minor in the name of a GPU's device node: 7 of "nvidia7". Nothing for other names.
[[nodiscard]] std::optional<int> minor_of_node(std::string_view name) noexcept;

/// "GPU-01020304-0506-…" from 16 bytes and "GPU-".
[[nodiscard]] std::string uuid_text(std::string_view prefix, std::span<const char, 16> bytes);

/// What a user may write for a GPU: an ordinal, or "GPU-…"/"MIG-…" with at least 8 characters after
/// the dash.
struct device_request {
  std::optional<int> ordinal;
  std::string uuid_prefix;  ///< "GPU-" or "MIG-" in capitals, the rest in lower case
};
/// Nothing when `text` is neither.
[[nodiscard]] std::optional<device_request> parse_device_request(std::string_view text);

}  // namespace gpushm::driver
