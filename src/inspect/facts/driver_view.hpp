// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpushm::inspect {

// Values reported by libcuda and NVML, without interpretation. A string is empty and a number -1 if
// the library did not report it. (Byte counts and clocks: 0.)

/// A GPU or MIG instance that CUDA lists to this process.
struct cuda_gpu_view {
  int ordinal = 0;
  std::string uuid;  ///< "GPU-…", or "MIG-…" for an instance
  std::string name;
  std::string pci_address;  ///< "0000:18:00.0"; an instance has its GPU's
  int compute_major = -1;   ///< compute capability
  int compute_minor = -1;
  std::uint64_t total_bytes = 0;
  int multiprocessors = -1;
  std::uint64_t l2_bytes = 0;
  int copy_engines = -1;
  int clock_khz = -1;         ///< peak, of the multiprocessors
  int memory_clock_khz = -1;  ///< peak
  int memory_bus_bits = -1;
  int compute_mode = -1;  ///< CUcomputemode: 0 default, 2 prohibited, 3 exclusive process
  std::optional<bool> ecc;
  std::optional<bool> vmm;           ///< virtual memory management
  std::optional<bool> file_handles;  ///< POSIX file descriptors of allocations
  std::optional<bool> fabric_handles;
  std::optional<bool> pools;              ///< memory pools
  std::optional<bool> pool_file_handles;  ///< pools that can be exported as descriptors
  std::optional<bool> rdma;               ///< GPUDirect RDMA
  std::optional<bool> rdma_vmm;           ///< also for virtual memory created for RDMA
};

/// CUDA's attributes of GPU `from` using memory of GPU `to`; ordinals.
struct cuda_pair_view {
  int from = 0;
  int to = 0;
  std::optional<bool> access;
  std::optional<bool> native_atomics;
  int performance_rank = -1;  ///< the driver's rank; lower is faster
};

struct cuda_view {
  std::string library;  ///< the file that was loaded, links resolved; empty: none
  std::string problem;  ///< why CUDA is not usable; empty: it works
  int result = -1;      ///< of cuInit, a CUresult
  int version = 0;      ///< cuDriverGetVersion: 13000 is CUDA 13.0
  std::vector<cuda_gpu_view> gpus;
  std::vector<cuda_pair_view> pairs;
};

struct nvlink_view {
  int link = 0;
  bool active = false;
  int version = -1;         ///< nvmlDeviceGetNvLinkVersion
  std::string remote_pci;   ///< of the remote end, if it has an address
  std::string remote_kind;  ///< "gpu", "switch", "other"; empty if not reported
};

struct mig_instance_view {
  std::string uuid;
  std::string name;
  int gpu_instance = -1;
  int compute_instance = -1;
  std::uint64_t total_bytes = 0;
};

/// A GPU as NVML reports it.
struct nvml_gpu_view {
  int index = 0;
  std::string uuid;
  std::string name;
  std::string pci_address;
  int minor = -1;
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::optional<bool> mig;          ///< MIG mode is on
  std::optional<bool> mig_pending;  ///< will be on after a reset
  std::vector<mig_instance_view> mig_instances;
  std::string compute_mode;    ///< "default", "prohibited", "exclusive process"
  std::string virtualization;  ///< "none", "passthrough", "vgpu", "host vgpu", "host vsga"
  std::optional<bool> persistence;
  std::optional<bool> ecc;
  int max_sm_clock_mhz = -1;
  int max_memory_clock_mhz = -1;
  std::vector<nvlink_view> links;
};

/// The distance between two GPUs, by NVML index: "internal", "single switch", "multiple switches",
/// "host bridge", "node", "system".
struct nvml_pair_view {
  int from = 0;
  int to = 0;
  std::string distance;
};

struct nvml_view {
  std::string library;
  std::string problem;
  int result = -1;  ///< of nvmlInit, an nvmlReturn_t
  std::string driver_version;
  std::string nvml_version;
  std::vector<nvml_gpu_view> gpus;
  std::vector<nvml_pair_view> pairs;
};

struct driver_view {
  /// Why the query failed: "killed by signal 11 (Segmentation fault)" or "no answer within 30.0 s";
  /// empty: it succeeded.
  std::string failure;
  cuda_view cuda;
  nvml_view nvml;
};

/// Loads both libraries into this process and queries all of the above. Blocks while they
/// initialise (40 ms, or seconds without persistence mode). As root, libcuda creates missing device
/// nodes: check those first. A broken driver can crash the process, so call this in an expendable
/// process. Does not throw.
[[nodiscard]] driver_view query_driver();

}  // namespace gpushm::inspect
