// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::inspect {

/// How memory gets from one process to another.
enum class way : std::uint8_t {
  raw_legacy,  ///< cuIpcGetMemHandle and cuIpcOpenMemHandle as they are
  legacy,      ///< the same memory through gpushm
  vmm,         ///< virtual memory's allocations as descriptors, through gpushm
  pool,        ///< a memory pool as descriptor, through gpushm
  host,        ///< host memory, through gpushm
};
/// "raw-legacy", "cuda-ipc", "cuda-vmm", "cuda-pool", "host".
[[nodiscard]] std::string_view to_string(way value) noexcept;
[[nodiscard]] std::optional<way> parse_way(std::string_view text) noexcept;
inline constexpr std::array all_ways{way::raw_legacy, way::legacy, way::vmm, way::pool, way::host};

/// What matters of a process for sharing.
struct party {
  std::int32_t pid = 0;             ///< as its own PID namespace numbers it
  std::uint64_t pid_namespace = 0;  ///< inode; 0 when not known
  bool known_minors = false;
  std::vector<int> minors;  ///< GPUs whose nodes it may open
};

struct prediction {
  bool works = false;
  bool crashes = false;  ///< the importing process dies inside libcuda
  /// What it fails with: "CUDA_ERROR_INVALID_CONTEXT (201)", or a gpushm code:
  /// "device_not_visible".
  std::string failure;
  /// What the driver says to whoever asks it without gpushm; empty when it works there too.
  std::string driver_failure;
  std::string why;     ///< the rule, with the fact behind it
  std::string remedy;  ///< a line of YAML or a command; empty when it works
};

/// What happens when `exporter` shares memory of the GPU with minor `gpu` and `importer` opens it
/// (docs/security-matrix.md). For way::host `gpu` does not matter. Pure.
[[nodiscard]] prediction predict(way how, const party& exporter, const party& importer, int gpu);

}  // namespace gpushm::inspect
