// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::inspect {

/// How memory is transferred from one process to another.
enum class way : std::uint8_t {
  raw_legacy,  ///< cuIpcGetMemHandle and cuIpcOpenMemHandle, without gpushm
  legacy,      ///< the same memory through gpushm
  vmm,         ///< virtual memory allocations as descriptors, through gpushm
  pool,        ///< a memory pool as a descriptor, through gpushm
  host,        ///< host memory, through gpushm
  // The driver's own calls in programs that do not know gpushm, with libgpushm-ipc.so preloaded.
  unmodified,             ///< legacy handles of memory
  unmodified_event,       ///< the same, ordered by an interprocess event
  unmodified_descriptor,  ///< virtual memory allocations, fetched with pidfd_getfd(2)
};
/// "raw-legacy", "cuda-ipc", "cuda-vmm", "cuda-pool", "host", "unmodified", "unmodified-event",
/// "unmodified-fd".
[[nodiscard]] std::string_view to_string(way value) noexcept;
[[nodiscard]] std::optional<way> parse_way(std::string_view text) noexcept;
/// The ways that do not need libgpushm-ipc.so.
inline constexpr std::array all_ways{way::raw_legacy, way::legacy, way::vmm, way::pool, way::host};
/// The ways that do.
inline constexpr std::array ipc_ways{
    way::unmodified, way::unmodified_event, way::unmodified_descriptor};
[[nodiscard]] constexpr bool needs_ipc_library(way value) noexcept {
  return value == way::unmodified || value == way::unmodified_event ||
         value == way::unmodified_descriptor;
}
/// Whether the programs of this way call the driver only: their errors are the driver's.
[[nodiscard]] constexpr bool is_raw(way value) noexcept {
  return value == way::raw_legacy || needs_ipc_library(value);
}

/// The properties of a process that affect sharing.
struct party {
  std::int32_t pid = 0;             ///< in its own PID namespace
  std::uint64_t pid_namespace = 0;  ///< inode; 0 if unknown
  bool known_minors = false;
  std::vector<int> minors;  ///< GPUs whose nodes it may open
};

struct prediction {
  bool works = false;
  bool crashes = false;  ///< the importing process dies inside libcuda
  /// The error: "CUDA_ERROR_INVALID_CONTEXT (201)", or a gpushm code: "device_not_visible".
  std::string failure;
  /// The driver's error without gpushm; empty if it works without gpushm too.
  std::string driver_failure;
  std::string why;     ///< the reason: the rule, and the fact on which it is based
  std::string remedy;  ///< a line of YAML or a command; empty if it works
};

/// Predicts the result when `exporter` shares memory of the GPU with minor `gpu` and `importer`
/// opens it (docs/security-matrix.md). `gpu` is ignored for way::host. Pure.
[[nodiscard]] prediction predict(way sharing_way,
                                 const party& exporter,
                                 const party& importer,
                                 int gpu);

}  // namespace gpushm::inspect
