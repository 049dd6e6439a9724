// SPDX-License-Identifier: Apache-2.0
#pragma once

// gpus.conf: what the fake GPUs under one root directory are. Written by fake_gpus, read by the
// fake libraries.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::fake {

/// One section of gpus.conf; its name is also that of the sub-directory that is the device's
/// memory.
struct gpu_properties {
  std::string section;  ///< "gpu0", or "mig0" for a MIG instance
  std::string uuid;     ///< "GPU-…" or "MIG-…"
  std::string name;
  std::string pci;  ///< "0000:10:00.0"; a MIG instance has its parent's
  int minor = 0;    ///< N of nvidiaN
  int numa = 0;
  std::uint64_t size_bytes = 0;  ///< device memory; 0: whatever the file system holds
  std::string
      mig_parent;        ///< section of the board that a MIG instance is part of; empty for a board
  bool peer = true;      ///< may reach and be reached by other GPUs
  bool rdma = true;      ///< GPUDirect RDMA may use its memory
  bool rdma_vmm = true;  ///< and also that of cuMemCreate, where it is asked for
  bool rdma_ignored = false;  ///< cuMemCreate takes gpuDirectRDMACapable, and makes memory without
  bool mig_enabled = false;   ///< a board: MIG is on, even when it has no instances
  int gpu_instance = -1;      ///< of a MIG instance; -1: N + 1 of "migN"
  int compute_instance = 0;   ///< of a MIG instance
};

[[nodiscard]] std::string format_config(const std::vector<gpu_properties>& gpus);
/// Unknown keys and malformed lines are skipped.
[[nodiscard]] std::vector<gpu_properties> parse_config(std::string_view text);
/// gpus.conf under `root`; empty when there is none.
[[nodiscard]] std::vector<gpu_properties> read_config(const std::string& root);

/// A GPU of gpus.conf as this process sees it.
struct gpu_view {
  gpu_properties properties;
  std::string directory;
  bool openable = false;  ///< its node and its directory can be opened by this process
};
/// All GPUs of $GPUSHM_FAKE_GPU_ROOT; nodes are looked for in $GPUSHM_DEV_ROOT, else /dev.
[[nodiscard]] std::vector<gpu_view> look_at_gpus();

/// The 16 bytes of a UUID in text form; zeros when malformed.
void uuid_bytes(std::string_view text, char (&bytes)[16]);

/// Memory of the device in `directory`: `size_bytes` if that is not 0, else the file system's size;
/// what is free of it. Allocations are multiples of 2 MiB plus a page, so whole 2 MiB count as
/// used.
struct memory_state {
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  bool own_file_system = false;  ///< a tmpfs of its own, which counts and limits by itself
};
[[nodiscard]] memory_state look_at_memory(const gpu_view& gpu);

}  // namespace gpushm::fake
