// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parsing and formatting of device identifiers. Pure functions: no driver, no files.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace gpushm::driver {

/// The kernel module's information about a GPU, from /proc/driver/nvidia/gpus/<pci>/information.
struct gpu_information {
  std::int32_t minor = -1;  ///< "Device Minor:"; -1 if missing
  std::string uuid;         ///< "GPU UUID:"; empty if missing or masked with question marks
};
[[nodiscard]] gpu_information parse_gpu_information(std::string_view text);

/// "0000:18:00.0" in lower case with a domain of four digits (more only if needed), from the
/// notation of CUDA ("0000:18:00.0") or NVML ("00000000:18:00.0"). Nothing if it is not a PCI
/// address.
[[nodiscard]] std::optional<std::string> normal_pci_address(std::string_view text);

/// The minor in the name of a GPU's device node: 7 for "nvidia7". Nothing for other names.
[[nodiscard]] std::optional<int> minor_of_node(std::string_view name) noexcept;

/// "GPU-01020304-0506-…" from "GPU-" and 16 bytes.
[[nodiscard]] std::string uuid_text(std::string_view prefix, std::span<const char, 16> bytes);

/// A user's notation for a device as the library has it: "host" of "cpu" and "cpu:0", and the
/// ordinal of "cuda" (0), "cuda:1", "gpu" and "gpu:1", as PyTorch and JAX name them. Other text is
/// returned as it is.
[[nodiscard]] std::string normal_device(std::string_view text);

/// A user's notation for a GPU: an ordinal, a name of PyTorch or JAX (see `normal_device`), or
/// "GPU-…"/"MIG-…" with at least 8 characters after the dash.
struct device_request {
  std::optional<int> ordinal;
  std::string uuid_prefix;  ///< "GPU-" or "MIG-" in capitals, the rest in lower case
};
/// Returns nullopt if `text` is neither.
[[nodiscard]] std::optional<device_request> parse_device_request(std::string_view text);

}  // namespace gpushm::driver
