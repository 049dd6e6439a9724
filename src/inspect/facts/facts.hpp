// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "inspect/facts/driver_view.hpp"
#include "inspect/facts/system.hpp"

namespace gpushm::inspect {

/// A namespace of a process.
struct namespace_facts {
  std::uint64_t id = 0;  ///< inode; 0 when it cannot be read
  std::optional<bool>
      host;  ///< is the initial one of the machine; nothing when that cannot be told
  friend bool operator==(const namespace_facts&, const namespace_facts&) = default;
};

/// Where a process runs, from its cgroup, its mounts and its environment.
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
  std::vector<std::int32_t> nspid;  ///< its numbers, outermost namespace first, as far as shown
  std::uint32_t uid = 0;            ///< effective
  std::uint32_t gid = 0;
  std::optional<std::uint64_t> capabilities;  ///< effective
  std::optional<std::uint64_t> bounding_capabilities;
  std::optional<bool> no_new_privileges;
  int seccomp = -1;  ///< 0 off, 1 strict, 2 filter
  /// "pid", "ipc", "net", "mnt", "uts", "user", "cgroup" → which.
  std::map<std::string, namespace_facts> namespaces;
  std::map<std::string, std::string> cgroups;  ///< controllers ("" for cgroup v2) → path
  container_facts container;
  std::map<std::string, std::uint64_t>
      limits;  ///< soft, "Max open files" → number; absent: unlimited or not known
  std::map<std::string, std::string> variables;  ///< of those that matter here and are set
};

struct device_node_facts {
  std::string path;
  std::optional<file_status> status;  ///< nothing: missing
  int open_error = 0;                 ///< errno of opening it; 0: it can be opened
  /// What /proc/devices says its major should be; nothing when it does not say.
  std::optional<std::uint32_t> expected_major;
};

/// A board: what kernel, device node, NVML and CUDA say of it, brought together.
struct gpu_facts {
  std::string pci_address;
  std::string uuid;  ///< empty when nobody says
  std::string name;
  int minor = -1;
  int numa_node = -1;
  std::optional<int> open_error;      ///< of its node; 0: can be opened; nothing: minor not known
  std::vector<std::string> pci_path;  ///< addresses of the bridges above it, from the root complex
  std::optional<nvml_gpu_view> nvml;
  /// As CUDA lists it: one for the board, or one for each MIG instance; none when hidden.
  std::vector<cuda_gpu_view> cuda;
  std::string sharing;  ///< "full", "mig", "time-sliced", "mps", "vgpu"
  int time_slices = 0;  ///< replicas that a device plugin advertises, when time-sliced
};

/// From board `from` to board `to`, indices of `facts::gpus`; both directions are there.
struct pair_facts {
  std::size_t from = 0;
  std::size_t to = 0;
  std::optional<bool> access;  ///< peer access, as CUDA says
  std::optional<bool> native_atomics;
  int performance_rank = -1;
  int links = 0;          ///< active NVLinks between them, directly or through switches
  int link_version = -1;  ///< generation of NVLink: 4 is NVLink 4
  bool through_switch = false;
  double link_bytes_per_second = 0;  ///< of all links, one direction; 0 when not known
  std::string pcie_distance;  ///< "PIX", "PXB", "PHB", "NODE", "SYS" as nvidia-smi topo has them;
                              ///< empty: not known
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

/// What the caller found out about a broker (this layer does not talk to any).
struct broker_facts {
  std::string socket;
  bool reachable = false;
  std::string domain;
  int protocol = 0;
  std::uint64_t segments = 0;
  std::string fence;    ///< "proven", "unproven", "none"; empty: not recorded
  std::string problem;  ///< the error's text; empty when reachable
};

struct facts {
  std::string kernel;  ///< release: "6.1.0"
  bool gvisor = false;
  std::string module_version;  ///< of the loaded kernel module; empty: not loaded or not to be seen
  bool open_module = false;
  /// Where a libcuda.so.1 lies, whether the loader finds it or not, and what version its name says.
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
  bool mps = false;  ///< a control daemon's pipe is there
  std::vector<int> imex_channels;
  std::optional<int> ptrace_scope;  ///< Yama
  std::uint64_t shm_bytes = 0;      ///< size of /dev/shm
  bool shm_private = false;         ///< a mount of this container's own
  process_facts self;
  std::optional<process_facts> peer;
  std::optional<std::vector<int>>
      peer_minors;  ///< GPUs whose nodes the peer may open; nothing: not known
  std::vector<cdi_facts> cdi;
  std::optional<broker_facts> broker;
  driver_view driver;
};

struct gather_options {
  std::int32_t peer_pid = 0;  ///< 0: none
};

/// Looks at everything. `ask_driver` is called once, after the device nodes were looked at: libcuda
/// makes missing ones (docs/adr/0012). Besides that it reads files only, a fraction of a second;
/// opening the node of a GPU that sleeps takes longer. Never throws for what it finds.
[[nodiscard]] facts gather(system& machine,
                           const std::function<driver_view()>& ask_driver,
                           const gather_options& options = {});

}  // namespace gpushm::inspect
