// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "inspect/facts/driver_view.hpp"
#include "inspect/facts/other_gpus.hpp"
#include "inspect/facts/system.hpp"

namespace gpushm::inspect {

/// A namespace of a process.
struct namespace_facts {
  std::uint64_t id = 0;      ///< inode; 0 when it cannot be read
  std::optional<bool> host;  ///< is the host's initial namespace; nullopt if unknown
  friend bool operator==(const namespace_facts&, const namespace_facts&) = default;
};

/// The container of a process, from its cgroup, mounts and environment.
struct container_facts {
  std::string runtime;  ///< "docker", "containerd", "cri-o", "podman", "runc", "gvisor", "unknown";
                        ///< empty: no container
  std::string id;
  std::string pod_uid;
  std::string pod_name;
  std::string pod_namespace;
};

struct process_facts {
  std::int32_t pid = 0;  ///< as this process sees it
  std::string name;
  std::vector<std::int32_t> nspid;  ///< its PIDs, outermost visible namespace first
  std::uint32_t uid = 0;            ///< effective
  std::uint32_t gid = 0;
  std::optional<std::uint64_t> capabilities;  ///< effective
  std::optional<std::uint64_t> bounding_capabilities;
  std::optional<bool> no_new_privileges;
  int seccomp = -1;  ///< 0 off, 1 strict, 2 filter
  /// "pid", "ipc", "net", "mnt", "uts", "user", "cgroup" → the namespace.
  std::map<std::string, namespace_facts> namespaces;
  std::map<std::string, std::string> cgroups;  ///< controllers ("" for cgroup v2) → path
  container_facts container;
  std::map<std::string, std::uint64_t>
      limits;  ///< soft, "Max open files" → number; absent: unlimited; empty: unknown
  std::map<std::string, std::string> variables;  ///< those of `known_variables` that are set
};

struct device_node_facts {
  std::string path;
  std::optional<file_status> status;  ///< nullopt: missing
  int open_error = 0;                 ///< errno of opening it; 0: it can be opened
  /// The major number in /proc/devices; nullopt if it has no entry.
  std::optional<std::uint32_t> expected_major;
};

/// A GPU: combined facts from the kernel, its device node, NVML and CUDA.
struct gpu_facts {
  std::string pci_address;
  std::string uuid;  ///< empty if unknown
  std::string name;
  int minor = -1;
  int numa_node = -1;
  std::optional<int> open_error;      ///< of its node; 0: can be opened; nullopt: minor unknown
  std::vector<std::string> pci_path;  ///< addresses of the bridges above it, from the root complex
  std::optional<nvml_gpu_view> nvml;
  /// As CUDA lists it: one for the GPU, or one for each MIG instance; none if hidden.
  std::vector<cuda_gpu_view> cuda;
  std::string sharing;  ///< "full", "mig", "time-sliced", "mps", "vgpu"
  int time_slices = 0;  ///< replicas that a device plugin advertises, when time-sliced
};

/// From GPU `from` to GPU `to`, indices in `facts::gpus`; both directions are included.
struct pair_facts {
  std::size_t from = 0;
  std::size_t to = 0;
  std::optional<bool> access;  ///< peer access, as CUDA reports it
  std::optional<bool> native_atomics;
  int performance_rank = -1;
  int links = 0;          ///< active NVLinks between them, directly or through switches
  int link_version = -1;  ///< generation of NVLink: 4 is NVLink 4
  bool through_switch = false;
  double link_bytes_per_second = 0;  ///< of all links, one direction; 0 if unknown
  std::string pcie_distance;         ///< "PIX", "PXB", "PHB", "NODE", "SYS" as in nvidia-smi topo;
                                     ///< empty: unknown
};

/// A toolkit or CUDA runtime library found on the machine.
struct toolkit_facts {
  std::string path;
  int version = 0;  ///< 12040 is CUDA 12.4
};

struct cdi_facts {
  std::string path;
  std::string kind;     ///< "nvidia.com/gpu"
  std::string version;  ///< of the specification
  std::vector<std::string> devices;
  std::string problem;  ///< why it is not usable; empty: valid
};

struct xid_facts {
  std::string pci_address;
  int number = 0;
  std::string text;  ///< the kernel's line
};

/// The caller's facts about a broker (this layer does not connect to brokers).
struct broker_facts {
  std::string socket;
  bool reachable = false;
  std::string domain;
  int protocol = 0;
  std::uint64_t segments = 0;
  std::string fence;    ///< "proven", "unproven", "none"; empty: not recorded
  std::string problem;  ///< the error's text; empty when reachable
};

/// SELinux, if the kernel uses it.
struct selinux_facts {
  bool present = false;
  std::optional<bool> enforcing;  ///< nullopt: not visible, as in many containers
  std::string context;            ///< of this process: "system_u:system_r:container_t:s0:c1,c2"
  /// The booleans that let containers use device nodes; nullopt: not visible.
  std::optional<bool> container_use_devices;
  std::map<std::string, std::string> labels;  ///< of NVIDIA's nodes and the broker's sockets
};

struct facts {
  std::string kernel;  ///< release: "6.1.0"
  bool gvisor = false;
  /// "wsl2" or "tegra": a machine without NVIDIA's usual driver for Linux; empty: any other.
  std::string platform;
  std::string model;  ///< of the machine, with "tegra"; empty if unknown
  selinux_facts selinux;
  std::vector<node_holder> holders;  ///< processes that have NVIDIA's nodes open
  std::string module_version;  ///< of the loaded kernel module; empty: not loaded or not visible
  bool open_module = false;
  /// All libcuda.so.1 files, whether or not the loader finds them.
  std::vector<std::string> libcuda_files;
  std::string
      libcuda_version;  ///< "580.159.04", from the name of the file that was loaded, else found
  std::string compat_version;  ///< of a forward-compatibility libcuda, when that is the one loaded
  std::vector<toolkit_facts> toolkits;
  std::map<std::string, std::uint32_t>
      device_majors;  ///< /proc/devices, character devices of NVIDIA
  std::vector<device_node_facts> nodes;
  std::vector<gpu_facts> gpus;
  std::vector<pair_facts> pairs;
  std::vector<xid_facts> xids;
  bool xids_readable = false;
  bool mps = false;  ///< a control daemon's pipe exists
  std::vector<int> imex_channels;
  std::optional<int> ptrace_scope;  ///< Yama
  std::uint64_t shm_bytes = 0;      ///< size of /dev/shm
  bool shm_private = false;         ///< a private mount of this container
  process_facts self;
  std::optional<process_facts> peer;
  std::optional<std::vector<int>>
      peer_minors;  ///< GPUs whose nodes the peer may open; nullopt: unknown
  std::vector<cdi_facts> cdi;
  std::vector<other_gpu_facts> other_gpus;  ///< of AMD and Intel
  std::optional<broker_facts> broker;
  driver_view driver;
};

struct gather_options {
  std::int32_t peer_pid = 0;  ///< 0: none
};

/// Gathers all facts. Calls `probe` once, after checking the device nodes: libcuda creates
/// missing nodes (docs/adr/0012). Otherwise it only reads files, which takes a fraction of a
/// second; opening the node of a sleeping GPU takes longer. Does not throw because of its findings.
[[nodiscard]] facts gather(system& machine,
                           const std::function<driver_view()>& probe,
                           const gather_options& options = {});

}  // namespace gpushm::inspect
