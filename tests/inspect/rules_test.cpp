// SPDX-License-Identifier: Apache-2.0
// Every rule of doctor passes on one machine and fails on another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "inspect/doctor/check.hpp"
#include "tests/support/machines/machines.hpp"

namespace gpushm_tests {
namespace {

using gpushm::inspect::check;
using gpushm::inspect::examine;
using gpushm::inspect::facts;
using gpushm::inspect::verdict;
using ::testing::HasSubstr;

struct rule_case {
  const char* rule;
  const char* name;
  const char* machine;
  void (*change)(facts&);
  verdict expected;
  const char* seen;    ///< part of `check::seen`
  const char* remedy;  ///< part of the remedy; empty: no remedy
};
void PrintTo(const rule_case& rule, std::ostream* to) {
  *to << rule.rule << " " << rule.name;
}

void unchanged(facts& /*facts*/) {}

/// A GPU of AMD and one of Intel, whose nodes can be opened.
void add_other_gpus(facts& facts) {
  const auto add = [&facts](const char* vendor, const char* device, const char* path) {
    facts.other_gpus.push_back(
        {vendor,
         device,
         path,
         gpushm::inspect::file_status{"character device", 0660, 0, 109, 226, 128},
         0});
  };
  add("amd", "0000:03:00.0", "/dev/dri/card0");
  add("amd", "0000:03:00.0", "/dev/dri/renderD128");
  add("intel", "0000:00:02.0", "/dev/dri/renderD129");
  add("amd", "kfd", "/dev/kfd");
}

constexpr auto ok = verdict::ok;
constexpr auto warning = verdict::warning;
constexpr auto problem = verdict::problem;
constexpr auto none = verdict::not_applicable;
constexpr auto note = verdict::note;

const rule_case cases[] = {
    {"platform", "usual", "dgx-h100", unchanged, ok, "NVIDIA's driver for Linux", ""},
    {"platform", "none", "no-driver", unchanged, none, "no NVIDIA driver", ""},
    {"platform",
     "wsl2",
     "no-driver",
     [](facts& facts) { facts.platform = "wsl2"; },
     note,
     "this is WSL2",
     "never install a driver in WSL2"},

    {"libcuda", "loaded", "dgx-h100", unchanged, ok, "/libcuda.so.550.90.07", ""},
    {"libcuda", "no_driver", "no-driver", unchanged, none, "no NVIDIA driver", ""},
    {"libcuda",
     "not_found_by_the_loader",
     "dgx-h100",
     [](facts& facts) { facts.driver.cuda.library.clear(); },
     problem,
     "/usr/lib/x86_64-linux-gnu/libcuda.so.550.90.07 exists, but the loader does not find",
     "run ldconfig as root, or export LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu:"},
    {"libcuda",
     "missing_in_a_container",
     "dra-pod",
     [](facts& facts) {
       facts.driver.cuda.library.clear();
       facts.libcuda_files.clear();
     },
     problem,
     "no libcuda.so.1, though the machine has NVIDIA's kernel module",
     "--device nvidia.com/gpu=all (CDI)"},

    {"driver-match", "same", "dgx-h100", unchanged, ok, "kernel module 550.90.07 (open)", ""},
    {"driver-match",
     "updated_libraries",
     "driver-mismatch",
     unchanged,
     problem,
     "kernel module 550.90.07 (open), library 570.124.06",
     "modprobe -r nvidia_uvm"},
    {"driver-match",
     "in_a_container",
     "dra-pod",
     [](facts& facts) { facts.libcuda_version = "560.35.03"; },
     problem,
     "library 560.35.03",
     "restart the container"},
    {"driver-match",
     "compatibility_package",
     "driver-mismatch",
     [](facts& facts) { facts.compat_version = facts.libcuda_version; },
     ok,
     "(forward compatibility package)",
     ""},

    {"cuda-compat", "older", "dgx-h100", unchanged, ok, "driver: CUDA 12.4; newest here: 12.4", ""},
    {"cuda-compat",
     "newer_minor",
     "dgx-h100",
     [](facts& facts) { facts.toolkits.front().version = 12090; },
     ok,
     "newest here: 12.9",
     ""},
    {"cuda-compat",
     "newer_major",
     "driver-mismatch",
     unchanged,
     problem,
     "driver: CUDA 12.4; newest here: 13.0 (/usr/local/cuda-13.0)",
     "cuda-compat-13-0"},

    {"cuinit", "works", "dgx-h100", unchanged, ok, "CUDA 12.4, 8 devices", ""},
    {"cuinit",
     "mismatch",
     "dgx-h100",
     [](facts& facts) {
       facts.driver.cuda.result = 803;
       facts.driver.cuda.problem = "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)";
     },
     problem,
     "(803)",
     "see driver-match"},
    {"cuinit", "follows_from_the_library", "driver-mismatch", unchanged, note, "(803)", ""},
    {"cuinit", "follows_from_the_node", "uvm-drift", unchanged, note, "(999)", ""},
    {"cuinit",
     "crashes",
     "dgx-h100",
     [](facts& facts) { facts.driver.failure = "killed by signal 11 (Segmentation fault)"; },
     problem,
     "querying the driver: killed by signal 11 (Segmentation fault)",
     "dmesg"},
    {"cuinit",
     "fabric_manager",
     "dgx-h100",
     [](facts& facts) {
       facts.driver.cuda.result = 802;
       facts.driver.cuda.problem = "cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)";
     },
     problem,
     "(802)",
     "nvidia-fabricmanager"},

    {"nvml", "works", "dgx-h100", unchanged, ok, "NVML 12.550.90.07, driver 550.90.07, 8", ""},
    {"nvml", "no_library", "gvisor", unchanged, warning, "not found", "compute,utility"},
    {"nvml",
     "fails",
     "dgx-h100",
     [](facts& facts) { facts.driver.nvml.problem = "nvmlInit_v2: NVML_ERROR_UNKNOWN (999)"; },
     warning,
     "(999)",
     "run nvidia-smi on the host: if it fails there too, repair the host's driver"},
    {"nvml", "follows_from_the_library", "driver-mismatch", unchanged, note, "(18)", ""},

    {"device-nodes", "open", "dgx-h100", unchanged, ok, "can be opened", ""},
    {"device-nodes",
     "no_driver_behind",
     "dgx-h100",
     [](facts& facts) {
       for (auto& node : facts.nodes) {
         node.open_error = node.path == "/dev/nvidia-uvm" ? ENXIO : node.open_error;
       }
     },
     problem,
     "/dev/nvidia-uvm has no driver (ENXIO)",
     "modprobe nvidia nvidia_uvm; then try a CUDA program"},
    {"device-nodes",
     "follows_from_the_major",
     "uvm-drift",
     unchanged,
     note,
     "/dev/nvidia-uvm has no driver (ENXIO)",
     ""},
    {"device-nodes",
     "cgroup",
     "dgx-h100",
     [](facts& facts) {
       for (auto& node : facts.nodes) {
         node.open_error = node.path == "/dev/nvidiactl" ? EPERM : node.open_error;
       }
     },
     problem,
     "/dev/nvidiactl is denied by the device cgroup (EPERM)",
     "start the container with the GPU"},
    {"device-nodes",
     "mode",
     "dgx-h100",
     [](facts& facts) {
       for (auto& node : facts.nodes) {
         node.open_error = node.path == "/dev/nvidia-uvm" ? EACCES : node.open_error;
       }
     },
     problem,
     "/dev/nvidia-uvm is denied by its owner and mode (EACCES)",
     "NVreg_DeviceFileMode"},

    {"gpu-nodes", "all", "dgx-h100", unchanged, ok, "8 of 8 can be opened", ""},
    {"gpu-nodes",
     "one_of_two",
     "container-one-of-two",
     unchanged,
     note,
     "1 of 2 can be opened: /dev/nvidia1 of GPU-000000a1 is missing",
     "start the container with the GPU"},
    {"gpu-nodes",
     "one_denied_by_its_mode",
     "container-one-of-two",
     [](facts& facts) { facts.gpus[1].open_error = EACCES; },
     warning,
     "1 of 2 can be opened: /dev/nvidia1 of GPU-000000a1 is denied by its owner and mode",
     "NVreg_DeviceFileMode"},
    {"gpu-nodes",
     "none",
     "container-one-of-two",
     [](facts& facts) { facts.gpus[0].open_error = EPERM; },
     problem,
     "0 of 2 can be opened: /dev/nvidia0 of GPU-000000a0 is denied by the device cgroup",
     "start the container with the GPU"},

    {"uvm-major", "right", "dgx-h100", unchanged, ok, "the kernel's major 511", ""},
    {"uvm-major",
     "drifted",
     "uvm-drift",
     unchanged,
     problem,
     "/dev/nvidia-uvm has major 508, the kernel has 511",
     "on the host: rm /dev/nvidia-uvm; nvidia-modprobe -u -c 0; then restart the container"},

    {"visible-devices", "unset", "dgx-h100", unchanged, ok, "neither", ""},
    {"visible-devices",
     "useful",
     "dgx-h100",
     [](facts& facts) { facts.self.variables["CUDA_VISIBLE_DEVICES"] = "1,GPU-000000a2"; },
     ok,
     "CUDA_VISIBLE_DEVICES=1,GPU-000000a2",
     ""},
    {"visible-devices",
     "names_missing_gpu",
     "container-one-of-two",
     [](facts& facts) { facts.self.variables["CUDA_VISIBLE_DEVICES"] = "1"; },
     problem,
     "CUDA_VISIBLE_DEVICES=1",
     "unset CUDA_VISIBLE_DEVICES"},
    {"visible-devices",
     "empty",
     "dgx-h100",
     [](facts& facts) { facts.self.variables["CUDA_VISIBLE_DEVICES"] = ""; },
     problem,
     "CUDA_VISIBLE_DEVICES=",
     "unset CUDA_VISIBLE_DEVICES"},
    {"visible-devices",
     "ended_deliberately",
     "dgx-h100",
     [](facts& facts) { facts.self.variables["CUDA_VISIBLE_DEVICES"] = "0,1,-1"; },
     ok,
     "CUDA_VISIBLE_DEVICES=0,1,-1",
     ""},
    {"visible-devices",
     "hides_all",
     "dgx-h100",
     [](facts& facts) { facts.self.variables["CUDA_VISIBLE_DEVICES"] = "-1"; },
     problem,
     "CUDA_VISIBLE_DEVICES=-1",
     "unset CUDA_VISIBLE_DEVICES"},
    {"visible-devices",
     "ends_early",
     "dgx-h100",
     [](facts& facts) { facts.self.variables["CUDA_VISIBLE_DEVICES"] = "0,1,9,2"; },
     warning,
     "CUDA_VISIBLE_DEVICES=0,1,9,2",
     "remove \"9\" from CUDA_VISIBLE_DEVICES"},
    {"visible-devices",
     "not_applied",
     "no-driver",
     [](facts& facts) { facts.self.variables["NVIDIA_VISIBLE_DEVICES"] = "all"; },
     problem,
     "NVIDIA_VISIBLE_DEVICES=all",
     "runtimeClassName: nvidia"},

    {"cdi", "valid", "dgx-h100", unchanged, ok, "1 document, 8 devices", ""},
    {"cdi", "none", "mig-a100", unchanged, none, "no CDI document", ""},
    {"other-gpus", "none", "dgx-h100", unchanged, none, "no GPU of AMD or Intel", ""},
    {"other-gpus",
     "described",
     "dgx-h100",
     [](facts& facts) {
       add_other_gpus(facts);
       facts.cdi.push_back({"/etc/cdi/amd.json", "amd.com/gpu", "0.7.0", {"0"}, {}});
       facts.cdi.push_back({"/etc/cdi/intel.yaml", "intel.com/gpu", "0.7.0", {"0"}, {}});
     },
     ok,
     "1 AMD GPU and 1 Intel GPU; the nodes can be opened; with CDI documents",
     ""},
    {"other-gpus",
     "without-a-document",
     "dgx-h100",
     add_other_gpus,
     note,
     "no usable CDI document for amd.com/gpu",
     "gpushm cdi generate --vendor amd --output /var/run/cdi/amd.com-gpu.yaml"},
    {"other-gpus",
     "document-with-a-problem",
     "dgx-h100",
     [](facts& facts) {
       add_other_gpus(facts);
       facts.cdi.push_back({"/etc/cdi/amd.json", "amd.com/gpu", "0.7.0", {"0"}, {}});
       facts.cdi.push_back({"/etc/cdi/intel.yaml", "intel.com/gpu", "0.7.0", {"0"}, "it is stale"});
     },
     note,
     "no usable CDI document for intel.com/gpu",
     "--vendor intel"},
    {"other-gpus",
     "not-in-the-group",
     "dgx-h100",
     [](facts& facts) {
       add_other_gpus(facts);
       facts.other_gpus[1].open_error = EACCES;
     },
     note,
     "/dev/dri/renderD128 is denied by its owner and mode (EACCES)",
     "group 109 (usermod -aG; usually render and video)"},
    {"other-gpus",
     "without-kfd",
     "dgx-h100",
     [](facts& facts) {
       add_other_gpus(facts);
       facts.other_gpus.back().status.reset();
     },
     note,
     "/dev/kfd is missing",
     "modprobe amdgpu"},
    {"cdi",
     "stale",
     "dgx-h100",
     [](facts& facts) { facts.cdi[0].problem = "it names /dev/nvidia9, which does not exist"; },
     warning,
     "/etc/cdi/nvidia.yaml: it names /dev/nvidia9, which does not exist",
     "gpushm cdi generate --output=/etc/cdi/nvidia.yaml"},
    {"cdi",
     "foreign",
     "dgx-h100",
     [](facts& facts) {
       facts.cdi.push_back({"/etc/cdi/intel.yaml", "intel.com/gpu", "0.5.0", {"0"}, "it is stale"});
     },
     note,
     "/etc/cdi/intel.yaml: it is stale",
     "rm /etc/cdi/intel.yaml, if this machine has no Intel GPU; else: gpushm cdi generate"},
    {"cdi",
     "nvidia_before_foreign",
     "dgx-h100",
     [](facts& facts) {
       facts.cdi.insert(facts.cdi.begin(),
                        {"/etc/cdi/intel.yaml", "intel.com/gpu", "0.5.0", {"0"}, "it is stale"});
       facts.cdi[1].problem = "it names /dev/nvidia9, which does not exist";
     },
     warning,
     "/etc/cdi/nvidia.yaml: it names /dev/nvidia9",
     "gpushm cdi generate --output=/etc/cdi/nvidia.yaml"},
    {"cdi",
     "of_the_agent",
     "dgx-h100",
     [](facts& facts) {
       facts.cdi.push_back({"/var/run/cdi/gpushm.dev-claim-1.json",
                            "gpushm.dev/share",
                            "0.5.0",
                            {"claim-1"},
                            "it names /run/gpushm/d/claim-1, which does not exist"});
     },
     warning,
     "/var/run/cdi/gpushm.dev-claim-1.json: it names",
     "restart the node's agent"},
    {"cdi",
     "without_a_kind",
     "dgx-h100",
     [](facts& facts) {
       facts.cdi.push_back({"/etc/cdi/x.yaml", "", "", {}, "it cannot be read"});
     },
     warning,
     "/etc/cdi/x.yaml: it cannot be read",
     "write it again with the program that wrote it"},
    {"cdi",
     "twice",
     "dgx-h100",
     [](facts& facts) {
       facts.cdi[0].problem =
           "nvidia.com/gpu=0 is also in /etc/cdi/b.yaml, and engines use neither";
     },
     warning,
     "engines use neither",
     "remove one of the two files"},

    {"gpus", "all", "dgx-h100", unchanged, ok, "8 x NVIDIA H100 80GB HBM3: GPU-000000a0", ""},
    {"gpus", "none", "no-driver", unchanged, none, "no GPU", ""},
    {"gpus",
     "does_not_answer",
     "dgx-h100",
     [](facts& facts) {
       facts.gpus[6].nvml.reset();
       facts.gpus[6].cuda.clear();
     },
     problem,
     "GPU-000000a6 can be opened, but neither NVML nor CUDA lists it",
     "dmesg"},

    {"vmm-support", "all", "dgx-h100", unchanged, ok, "on every GPU", ""},
    {"vmm-support",
     "lacking",
     "dgx-h100",
     [](facts& facts) { facts.gpus[3].cuda[0].file_handles = false; },
     problem,
     "GPU-000000a3 cannot export",
     "client::share"},

    {"rdma", "not_recorded", "dgx-h100", unchanged, none, "unknown (", ""},
    {"rdma",
     "all",
     "dgx-h100",
     [](facts& facts) {
       for (auto& gpu : facts.gpus) {
         gpu.cuda[0].rdma = gpu.cuda[0].rdma_vmm = true;
       }
     },
     ok,
     "memory created by gpushm is RDMA capable on every GPU: GPU-000000a0, GPU-000000a1",
     ""},
    {"rdma",
     "not_of_virtual_memory",
     "dgx-h100",
     [](facts& facts) {
       for (auto& gpu : facts.gpus) {
         gpu.cuda[0].rdma = gpu.cuda[0].rdma_vmm = true;
       }
       facts.gpus[3].cuda[0].rdma_vmm = false;
     },
     note,
     "not RDMA capable on GPU-000000a3 (cudaMalloc memory only); it is on GPU-000000a0",
     "client::share"},
    {"rdma",
     "none",
     "h200-one-of-two",
     [](facts& facts) {
       for (auto& gpu : facts.gpus) {
         for (auto& each : gpu.cuda) {
           each.rdma = each.rdma_vmm = false;
         }
       }
     },
     note,
     "memory created by gpushm is not RDMA capable on GPU-",
     "device host"},

    {"mig", "off", "dgx-h100", unchanged, ok, "off", ""},
    {"mig", "instances", "mig-a100", unchanged, ok, "3 instances", ""},
    {"mig",
     "no_instance",
     "mig-a100",
     [](facts& facts) { facts.gpus[0].nvml->mig_instances.clear(); },
     problem,
     "MIG mode of GPU-000000b0 is on, but it has no instance here",
     "nvidia-smi mig -lgip"},
    {"mig",
     "pending",
     "dgx-h100",
     [](facts& facts) { facts.gpus[1].nvml->mig_pending = true; },
     warning,
     "MIG mode of GPU-000000a1 will be on after a reset",
     "--gpu-reset"},
    {"mig",
     "capability_denied",
     "mig-a100",
     [](facts& facts) {
       for (auto& node : facts.nodes) {
         node.open_error = node.path.find("caps") == std::string::npos ? 0 : EACCES;
       }
     },
     problem,
     "/dev/nvidia-caps/nvidia-cap21 is denied by its owner and mode",
     "chmod 0444"},

    {"compute-mode", "default", "dgx-h100", unchanged, ok, "default", ""},
    {"compute-mode",
     "exclusive",
     "dgx-h100",
     [](facts& facts) { facts.gpus[2].nvml->compute_mode = "exclusive process"; },
     problem,
     "compute mode of GPU-000000a2 is exclusive process",
     "nvidia-smi -i 0000:52:00.0 -c DEFAULT"},

    {"mps", "off", "dgx-h100", unchanged, ok, "not running", ""},
    {"mps",
     "on",
     "dgx-h100",
     [](facts& facts) { facts.mps = true; },
     warning,
     "MPS control daemon",
     "nvidia-cuda-mps-control"},

    {"virtualization", "none", "dgx-h100", unchanged, ok, "none", ""},
    {"virtualization",
     "vgpu",
     "dgx-h100",
     [](facts& facts) { facts.gpus[0].nvml->virtualization = "vgpu"; },
     warning,
     "GPU-000000a0 is a vGPU",
     "doctor"},

    {"persistence", "on", "dgx-h100", unchanged, ok, "on", ""},
    {"persistence",
     "off",
     "dgx-h100",
     [](facts& facts) { facts.gpus[7].nvml->persistence = false; },
     warning,
     "persistence mode of GPU-000000a7 is off",
     "nvidia-persistenced"},

    {"peer-access", "all", "dgx-h100", unchanged, ok, "over up to 18 NVLinks through switches", ""},
    {"peer-access", "one_gpu", "container-one-of-two", unchanged, none, "fewer than two", ""},
    {"peer-access",
     "denied",
     "dgx-h100",
     [](facts& facts) { facts.pairs[0].access = false; },
     warning,
     "GPU-000000a0 has no peer access to GPU-000000a1",
     "topo -p2p"},
    {"peer-access",
     "links_down",
     "dgx-h100",
     [](facts& facts) { facts.gpus[4].nvml->links[5].active = false; },
     warning,
     "1 of 18 NVLinks of GPU-000000a4 are down",
     "nvlink -s"},

    {"imex", "none", "dgx-h100", unchanged, none, "no IMEX channel", ""},
    {"imex",
     "channel",
     "dgx-h100",
     [](facts& facts) { facts.imex_channels = {0}; },
     ok,
     "1 IMEX channel",
     ""},
    {"imex",
     "denied",
     "dgx-h100",
     [](facts& facts) {
       facts.nodes.push_back({"/dev/nvidia-caps-imex-channels/channel0", std::nullopt, EPERM, {}});
     },
     warning,
     "/dev/nvidia-caps-imex-channels/channel0 is denied by the device cgroup",
     "ComputeDomain"},

    {"xid", "none", "dgx-h100", unchanged, ok, "none in the kernel's log", ""},
    {"xid", "not_readable", "dra-pod", unchanged, none, "may not read", "dmesg"},
    {"xid",
     "of_a_program",
     "dgx-h100",
     [](facts& facts) {
       facts.xids = {{"0000:1b:00.0", 31, "NVRM: Xid (PCI:0000:1b:00): 31, pid=7, MMU Fault"}};
     },
     warning,
     "1 in the kernel's log, such as NVRM: Xid (PCI:0000:1b:00): 31",
     "compute-sanitizer"},
    {"xid",
     "contained",
     "dgx-h100",
     [](facts& facts) {
       facts.xids = {{"0000:1b:00.0", 94, "NVRM: Xid (PCI:0000:1b:00): 94, Contained: SM"}};
     },
     warning,
     "1 in the kernel's log, such as NVRM: Xid (PCI:0000:1b:00): 94",
     "ROW_REMAPPER"},
    {"xid",
     "unknown",
     "dgx-h100",
     [](facts& facts) {
       facts.xids = {{"0000:1b:00.0", 999, "NVRM: Xid (PCI:0000:1b:00): 999, new"}};
     },
     warning,
     "1 in the kernel's log, such as NVRM: Xid (PCI:0000:1b:00): 999",
     "NVIDIA's Xid catalogue"},
    {"xid",
     "of_the_gpu",
     "dgx-h100",
     [](facts& facts) {
       facts.xids = {{"0000:1b:00.0", 79, "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off"},
                     {"0000:1b:00.0", 31, "NVRM: Xid (PCI:0000:1b:00): 31, pid=7, MMU Fault"}};
     },
     problem,
     "2 in the kernel's log, such as NVRM: Xid (PCI:0000:1b:00): 79",
     "drain the node"},

    {"selinux", "none", "dgx-h100", unchanged, none, "no SELinux", ""},
    {"selinux",
     "allows",
     "dgx-h100",
     [](facts& facts) {
       facts.selinux = {true, true, "a:b:unconfined_t:s0", true, {}};
     },
     ok,
     "enforcing, this process is unconfined_t",
     ""},
    {"selinux",
     "denies_containers",
     "dgx-h100",
     [](facts& facts) {
       facts.selinux = {true,
                        true,
                        "a:b:unconfined_t:s0",
                        false,
                        {{"/dev/nvidia0", "a:object_r:xserver_misc_device_t:s0"}}};
     },
     note,
     "container_use_devices is off, and /dev/nvidia0 is xserver_misc_device_t",
     "setsebool -P container_use_devices=on"},

    {"container", "none", "dgx-h100", unchanged, ok, "no container", ""},
    {"container",
     "pod",
     "container-one-of-two",
     unchanged,
     ok,
     "a container of containerd, id 4f4f4f4f4f4f, pod team-a/producer-7d9f",
     ""},
    {"container", "gvisor", "gvisor", unchanged, warning, "a container of gvisor", "runc"},

    {"namespaces",
     "pod",
     "dra-pod",
     unchanged,
     ok,
     "cgroup private, ipc private, mnt unknown (the host's is not visible), "
     "net unknown (the host's is not visible), pid private, user the host's",
     ""},
    {"namespaces",
     "hidden",
     "no-driver",
     [](facts& facts) { facts.self.namespaces.clear(); },
     none,
     "unknown (the namespaces are not visible)",
     ""},

    {"pid-namespace", "host", "dgx-h100", unchanged, ok, "the host's; this process is", ""},
    {"pid-namespace",
     "private",
     "container-one-of-two",
     unchanged,
     note,
     "private; this process is PID 1 in it",
     "share through gpushm"},

    {"user-namespace", "host", "dgx-h100", unchanged, ok, "the host's", ""},
    {"user-namespace",
     "private",
     "dra-pod",
     [](facts& facts) { facts.self.namespaces["user"].host = false; },
     warning,
     "private",
     "tenant"},

    {"host-namespaces", "own", "dra-pod", unchanged, ok, "the container's own", ""},
    {"host-namespaces", "no_container", "dgx-h100", unchanged, none, "no container", ""},
    {"host-namespaces",
     "host_pid",
     "dra-pod",
     [](facts& facts) { facts.self.namespaces["pid"].host = true; },
     warning,
     "this container has hostPID: true",
     "delete hostPID: true from the pod"},

    {"privileges", "restricted", "dra-pod", unchanged, ok, "uid 2000, no capability", ""},
    {"privileges",
     "privileged",
     "dra-pod",
     [](facts& facts) { facts.self.capabilities = 0x1ffffffffffU; },
     warning,
     "with capabilities",
     "delete privileged: true"},

    {"ptrace", "allowed", "dgx-h100", unchanged, ok, "ptrace_scope is 0", ""},
    {"ptrace", "denied", "dra-pod", unchanged, note, "ptrace_scope is 1", "share through gpushm"},

    {"shm", "large", "dgx-h100", unchanged, ok, "64 GiB", ""},
    {"shm", "small", "dra-pod", unchanged, note, "64 MiB, this container's own", "medium: Memory"},

    {"limits", "enough", "dgx-h100", unchanged, ok, "1048576 open files", ""},
    {"limits",
     "few",
     "dgx-h100",
     [](facts& facts) { facts.self.limits["Max open files"] = 256; },
     warning,
     "256 open files",
     "ulimit -n"},
    {"limits",
     "none",
     "dgx-h100",
     [](facts& facts) { facts.self.limits.erase("Max open files"); },
     ok,
     "no limit on open files",
     ""},
    {"limits",
     "hidden",
     "dgx-h100",
     [](facts& facts) { facts.self.limits.clear(); },
     none,
     "unknown (this process's limits are not visible)",
     ""},

    {"broker",
     "not_contacted",
     "dgx-h100",
     unchanged,
     none,
     "unknown (no broker was contacted)",
     ""},
    {"broker",
     "reachable",
     "dgx-h100",
     [](facts& facts) {
       facts.broker = {"/run/gpushm/d/a/socket", true, "a", 1, 3, "proven", {}};
     },
     ok,
     "domain \"a\" at /run/gpushm/d/a/socket, protocol 1, 3 segments, fence proven",
     ""},
    {"broker",
     "without_a_fence",
     "dgx-h100",
     [](facts& facts) {
       facts.broker = {"/run/gpushm/d/a/socket", true, "a", 1, 3, "none", {}};
     },
     note,
     "3 segments, fence none",
     "do not use MPS"},
    {"broker",
     "not_mounted",
     "dra-pod",
     [](facts& facts) {
       facts.broker = {"", false, "", 0, 0, "", "the socket does not exist"};
     },
     warning,
     "the socket does not exist",
     "mount the domain's directory"},

    {"waiting-streams",
     "usual",
     "dgx-h100",
     unchanged,
     ok,
     "CUDA_DEVICE_MAX_CONNECTIONS is not set, 8 connections: at most 4 of a process's streams",
     ""},
    {"waiting-streams",
     "many",
     "dgx-h100",
     [](facts& facts) { facts.self.variables["CUDA_DEVICE_MAX_CONNECTIONS"] = "99"; },
     ok,
     "CUDA_DEVICE_MAX_CONNECTIONS=99, 32 connections: at most 16 of a process's streams",
     ""},
    {"waiting-streams",
     "one_connection",
     "dgx-h100",
     [](facts& facts) { facts.self.variables["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"; },
     warning,
     "CUDA_DEVICE_MAX_CONNECTIONS=1: no stream can wait for a timeline",
     "unset CUDA_DEVICE_MAX_CONNECTIONS, or export CUDA_DEVICE_MAX_CONNECTIONS=8"},
};

const check& found(const std::vector<check>& checks, const std::string& id) {
  for (const check& each : checks) {
    if (each.id == id) {
      return each;
    }
  }
  throw std::runtime_error("no check " + id);
}

class inspect_rule : public ::testing::TestWithParam<rule_case> {};

TEST_P(inspect_rule, returns_expected_verdict) {
  facts facts = recorded_facts(GetParam().machine);
  GetParam().change(facts);
  const auto checks = examine(facts);
  const check& made = found(checks, GetParam().rule);
  EXPECT_EQ(made.result, GetParam().expected) << made.seen;
  EXPECT_THAT(made.seen, HasSubstr(GetParam().seen));
  if (*GetParam().remedy == '\0') {
    EXPECT_EQ(made.remedy, "");
  } else {
    EXPECT_THAT(made.remedy, HasSubstr(GetParam().remedy));
  }
}

std::string case_name(const ::testing::TestParamInfo<rule_case>& info) {
  std::string name = std::string(info.param.rule) + "_" + info.param.name;
  for (char& letter : name) {
    letter = letter == '-' ? '_' : letter;
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(, inspect_rule, ::testing::ValuesIn(cases), case_name);

TEST(inspect_rules, each_has_a_passing_and_a_failing_case) {
  std::map<std::string, std::set<verdict>> tested;
  for (const rule_case& each : cases) {
    tested[each.rule].insert(each.expected);
  }
  for (const check& each : examine(recorded_facts("dgx-h100"))) {
    const auto& verdicts = tested[each.id];
    EXPECT_TRUE(verdicts.count(ok) != 0) << each.id;
    // The list of namespaces has no failing case.
    EXPECT_TRUE(verdicts.count(warning) + verdicts.count(problem) + verdicts.count(note) > 0 ||
                each.id == "namespaces")
        << each.id;
    tested.erase(each.id);
  }
  EXPECT_TRUE(tested.empty()) << "no such rule: " << tested.begin()->first;
}

TEST(inspect_rules, problem_has_reason_and_remedy) {
  for (const std::string& machine : machine_names()) {
    std::set<std::string> ids;
    for (const check& each : examine(recorded_facts(machine))) {
      EXPECT_TRUE(ids.insert(each.id).second) << each.id;
      EXPECT_NE(each.section, "");
      EXPECT_NE(each.seen, "") << machine << " " << each.id;
      if (each.result == warning || each.result == problem) {
        EXPECT_NE(each.why, "") << machine << " " << each.id;
        EXPECT_NE(each.remedy, "") << machine << " " << each.id;
      }
    }
  }
}

std::map<std::string, std::string> consequences_of(const std::vector<check>& checks) {
  std::map<std::string, std::string> texts;
  for (const check& each : checks) {
    if (!each.follows.empty()) {
      texts[each.id] = each.follows;
      EXPECT_EQ(each.result, note) << each.id;
      EXPECT_EQ(each.why, "follows from " + each.follows);
      EXPECT_EQ(each.remedy, "");
      EXPECT_EQ(found(checks, each.follows).result, problem) << each.follows;
    }
  }
  return texts;
}

std::set<std::string> with(verdict result, const std::vector<check>& checks) {
  std::set<std::string> ids;
  for (const check& each : checks) {
    if (each.result == result) {
      ids.insert(each.id);
    }
  }
  return ids;
}

TEST(inspect_rules, one_cause_is_one_problem) {
  using follows = std::map<std::string, std::string>;
  const auto drifted = examine(recorded_facts("uvm-drift"));
  EXPECT_EQ(with(problem, drifted), std::set<std::string>{"uvm-major"});
  EXPECT_EQ(consequences_of(drifted),
            (follows{{"device-nodes", "uvm-major"}, {"cuinit", "uvm-major"}}));
  const auto mismatch = examine(recorded_facts("driver-mismatch"));
  EXPECT_EQ(with(problem, mismatch), (std::set<std::string>{"driver-match", "cuda-compat"}))
      << "a toolkit that is too new is independent of the cause";
  EXPECT_EQ(consequences_of(mismatch),
            (follows{{"cuinit", "driver-match"}, {"nvml", "driver-match"}}));
  for (const char* sound : {"dgx-h100", "dra-pod", "mig-a100", "no-driver"}) {
    EXPECT_EQ(consequences_of(examine(recorded_facts(sound))), follows{}) << sound;
  }
}

TEST(inspect_rules, correct_pod_has_no_warning) {
  for (const char* pod : {"dra-pod", "container-one-of-two"}) {
    facts all = recorded_facts(pod);
    all.broker = {"/run/gpushm/d/a/socket", true, "a", 1, 0, {}, {}};
    const auto checks = examine(all);
    EXPECT_EQ(with(problem, checks), std::set<std::string>{}) << pod;
    EXPECT_EQ(with(warning, checks), std::set<std::string>{}) << pod;
  }
}

TEST(inspect_rules, unknown_has_one_spelling) {
  for (const std::string& machine : machine_names()) {
    for (const check& each : examine(recorded_facts(machine))) {
      for (const char* other : {"not known", "undetermined", "unavailable"}) {
        EXPECT_EQ(each.seen.find(other), std::string::npos) << machine << " " << each.seen;
      }
    }
  }
}

TEST(inspect_rules, driver_problem_reports_unusable_driver) {
  using gpushm::inspect::driver_problem;
  EXPECT_THAT(driver_problem(recorded_facts("driver-mismatch")), HasSubstr("(803)"));
  EXPECT_THAT(driver_problem(recorded_facts("uvm-drift")), HasSubstr("(999)"));
  for (const char* sound : {"dgx-h100", "dra-pod", "mig-a100", "no-driver"}) {
    EXPECT_EQ(driver_problem(recorded_facts(sound)), "") << sound;
  }
}

}  // namespace
}  // namespace gpushm_tests
