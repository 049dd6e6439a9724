// SPDX-License-Identifier: Apache-2.0
#pragma once

// gpus.conf: the fake GPUs under one root directory. Written by fake_gpus, read by the fake
// libraries.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::fake {

/// One section of gpus.conf; its name is also the name of the sub-directory with the device's
/// memory.
struct gpu_properties {
  std::string section;  ///< "gpu0", or "mig0" for a MIG instance
  std::string uuid;     ///< "GPU-…" or "MIG-…"
  std::string name;
  std::string pci;  ///< "0000:10:00.0"; for a MIG instance its parent's
  int minor = 0;    ///< N of nvidiaN
  int numa = 0;
  std::uint64_t size_bytes = 0;  ///< device memory; 0: the size of the file system
  std::string mig_parent;  ///< section of the GPU that a MIG instance is part of; empty for a GPU
  bool peer = true;        ///< may access other GPUs and be accessed by them
  bool rdma = true;        ///< GPUDirect RDMA may use its memory
  bool rdma_vmm = true;    ///< and also the memory of cuMemCreate, where requested
  bool rdma_ignored = false;  ///< cuMemCreate accepts gpuDirectRDMACapable and ignores it
  bool mig_enabled = false;   ///< a GPU: MIG is on, even without instances
  int gpu_instance = -1;      ///< of a MIG instance; -1: N + 1 of "migN"
  int compute_instance = 0;   ///< of a MIG instance
};

[[nodiscard]] std::string format_config(const std::vector<gpu_properties>& gpus);
/// Unknown keys and malformed lines are skipped.
[[nodiscard]] std::vector<gpu_properties> parse_config(std::string_view text);
/// gpus.conf under `root`; empty when the file does not exist.
[[nodiscard]] std::vector<gpu_properties> read_config(const std::string& root);

/// A GPU of gpus.conf from the view of this process.
struct gpu_view {
  gpu_properties properties;
  std::string directory;
  bool openable = false;  ///< this process can open its node and its directory
};
/// All GPUs of $GPUSHM_FAKE_GPU_ROOT; their nodes are in $GPUSHM_DEV_ROOT, else /dev.
[[nodiscard]] std::vector<gpu_view> read_gpus();

/// The 16 bytes of a UUID in text form; zeros when malformed.
void uuid_bytes(std::string_view text, char (&bytes)[16]);

/// Memory of the device in `directory`: `size_bytes` if that is not 0, else the file system's size;
/// and the free part of it. Allocations are multiples of 2 MiB plus a page, so whole 2 MiB count as
/// used.
struct memory_state {
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  bool own_file_system = false;  ///< a separate tmpfs, which counts and limits by itself
};
[[nodiscard]] memory_state read_memory_state(const gpu_view& gpu);

}  // namespace gpushm::fake
