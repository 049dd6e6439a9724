// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "driver/xid.hpp"
#include "inspect/doctor/rules.hpp"

namespace gpushm::inspect::rules {

namespace {

/// Returns true, and sets what was seen, if `known` holds for no GPU.
template <typename Known>
bool none_known(const facts& all, check& made, Known&& known) {
  if (std::none_of(all.gpus.begin(), all.gpus.end(), known)) {
    made.seen = all.gpus.empty() ? "no GPU" : unknown("the driver does not report it");
    return true;
  }
  return false;
}

bool has_cuda(const gpu_facts& gpu) {
  return !gpu.cuda.empty();
}

std::string compute_mode_of(const gpu_facts& gpu) {
  if (gpu.nvml && !gpu.nvml->compute_mode.empty()) {
    return gpu.nvml->compute_mode;
  }
  switch (gpu.cuda.empty() ? -1 : gpu.cuda.front().compute_mode) {
    case 0:
      return "default";
    case 2:
      return "prohibited";
    case 3:
      return "exclusive process";
    default:
      return {};
  }
}

/// "NVIDIA H200" three times as "3 x NVIDIA H200".
std::string names_of(const facts& all) {
  std::map<std::string, int> counts;
  for (const gpu_facts& gpu : all.gpus) {
    ++counts[gpu.name.empty() ? "GPU" : gpu.name];
  }
  std::string text;
  for (const auto& [name, count] : counts) {
    text += (text.empty() ? "" : ", ") + (count == 1 ? "" : std::to_string(count) + " x ") + name;
  }
  return text;
}

}  // namespace

check gpus(const facts& all) {
  check made;
  if (all.gpus.empty()) {
    made.seen = "no GPU";
    return made;
  }
  made.seen = names_of(all) + ":";
  for (const gpu_facts& gpu : all.gpus) {
    made.seen += " " + (gpu.uuid.empty() ? gpu.pci_address : gpu.uuid) +
                 (gpu.sharing.empty() || gpu.sharing == "full" ? "" : " (" + gpu.sharing + ")");
  }
  for (const gpu_facts& gpu : all.gpus) {
    const bool shown = gpu.nvml.has_value() || !gpu.cuda.empty();
    if (gpu.open_error == 0 && !shown && all.driver.nvml.problem.empty() &&
        all.driver.failure.empty()) {
      made.result = verdict::problem;
      made.seen = short_name(gpu) + " can be opened, but neither NVML nor CUDA lists it";
      made.why = "the kernel module lists the GPU, but it does not respond";
      made.remedy = "on the host: dmesg | grep NVRM; then nvidia-smi --gpu-reset or a reboot";
      return made;
    }
  }
  made.result = verdict::ok;
  return made;
}

check mig(const facts& all) {
  check made;
  if (none_known(all, made, [](const gpu_facts& gpu) {
        return gpu.nvml && (gpu.nvml->mig.has_value() || !gpu.nvml->uuid.empty());
      })) {
    return made;
  }
  std::size_t instances = 0;
  bool on = false;
  for (const gpu_facts& gpu : all.gpus) {
    if (!gpu.nvml) {
      continue;
    }
    instances += gpu.nvml->mig_instances.size();
    on = on || gpu.nvml->mig == true;
    if (gpu.nvml->mig == true && gpu.nvml->mig_instances.empty()) {
      made.result = verdict::problem;
      made.seen = "MIG mode of " + short_name(gpu) + " is on, but it has no instance here";
      made.why = "CUDA shows only the instances of a GPU in MIG mode";
      made.remedy =
          "on the host: nvidia-smi mig -cgi 9,9 -C, or nvidia-smi -mig 0 and a reset; in "
          "a container: request nvidia.com/mig-…";
      return made;
    }
    if (gpu.nvml->mig && gpu.nvml->mig_pending && *gpu.nvml->mig != *gpu.nvml->mig_pending) {
      made.result = verdict::warning;
      made.seen = "MIG mode of " + short_name(gpu) + " will be " +
                  (*gpu.nvml->mig_pending ? "on" : "off") + " after a reset";
      made.why = "the mode does not change before the reset";
      made.remedy = "stop all users of the GPU, then nvidia-smi --gpu-reset";
      return made;
    }
  }
  for (const device_node_facts& node : all.nodes) {
    if (on && node.path.starts_with("/dev/nvidia-caps/") && node.open_error == EACCES) {
      made.result = verdict::problem;
      made.seen = node.path + " " + why_not_opened(node.open_error);
      made.why = "an instance needs its GPU's node and two of these";
      made.remedy = "on the host: chmod 0444 " + node.path + " (NVreg_DeviceFileMode)";
      return made;
    }
  }
  made.result = verdict::ok;
  made.seen = on ? std::to_string(instances) + " instances" : "off";
  if (on) {
    made.why = "memory is shared within an instance only: instances have no peer access";
  }
  return made;
}

check compute_mode(const facts& all) {
  check made;
  if (none_known(all, made, [](const gpu_facts& gpu) { return !compute_mode_of(gpu).empty(); })) {
    return made;
  }
  for (const gpu_facts& gpu : all.gpus) {
    const std::string mode = compute_mode_of(gpu);
    if (mode.empty() || mode == "default") {
      continue;
    }
    made.result = verdict::problem;
    made.seen = "compute mode of " + short_name(gpu) + " is " + mode;
    made.why = mode == "prohibited"
                   ? "no process may use it"
                   : "a second process gets CUDA_ERROR_DEVICE_UNAVAILABLE (46): sharing fails";
    made.remedy = "on the host: nvidia-smi -i " + gpu.pci_address + " -c DEFAULT";
    return made;
  }
  made.result = verdict::ok;
  made.seen = "default";
  return made;
}

check mps(const facts& all) {
  check made;
  if (all.gpus.empty()) {
    made.seen = "no GPU";
  } else if (all.mps) {
    made.result = verdict::warning;
    made.seen = "the pipe of an MPS control daemon exists";
    made.why = "clients of one MPS server share faults: a crash of one terminates the others";
    made.remedy = "nothing, if MPS is intended; echo quit | nvidia-cuda-mps-control stops it";
  } else {
    made.result = verdict::ok;
    made.seen = "MPS is not running";
  }
  return made;
}

check virtualization(const facts& all) {
  check made;
  if (none_known(all, made, [](const gpu_facts& gpu) {
        return gpu.nvml && !gpu.nvml->virtualization.empty();
      })) {
    return made;
  }
  made.result = verdict::ok;
  for (const gpu_facts& gpu : all.gpus) {
    if (!gpu.nvml || gpu.nvml->virtualization.empty()) {
      continue;
    }
    made.seen = gpu.nvml->virtualization;
    if (gpu.nvml->virtualization == "vgpu") {
      made.result = verdict::warning;
      made.seen = short_name(gpu) + " is a vGPU";
      made.why =
          "what vGPUs can share depends on profile and licence: unified memory, peer access and "
          "profilers may be disabled (not measured by gpushm)";
      made.remedy = "gpushm doctor without --no-selftest shows what works";
      return made;
    }
  }
  return made;
}

check persistence(const facts& all) {
  check made;
  if (none_known(all, made, [](const gpu_facts& gpu) {
        return gpu.nvml && gpu.nvml->persistence.has_value();
      })) {
    return made;
  }
  const auto off = std::find_if(all.gpus.begin(), all.gpus.end(), [](const gpu_facts& gpu) {
    return gpu.nvml && gpu.nvml->persistence == false;
  });
  if (off == all.gpus.end()) {
    made.result = verdict::ok;
    made.seen = "on";
    return made;
  }
  made.result = verdict::warning;
  made.seen = "persistence mode of " + short_name(*off) + " is off";
  made.why = "the first use of an idle GPU then takes a second or more";
  made.remedy = "on the host: systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1";
  return made;
}

check xid(const facts& all) {
  check made;
  if (!all.xids_readable) {
    made.seen = unknown("this process may not read the kernel's log");
    made.remedy = "on the host: dmesg | grep Xid";
    return made;
  }
  if (all.xids.empty()) {
    made.result = driver_expected(all) ? verdict::ok : verdict::not_applicable;
    made.seen = "none in the kernel's log";
    return made;
  }
  const auto hardware = std::find_if(all.xids.rbegin(), all.xids.rend(), [](const xid_facts& each) {
    return each.number > 0 && driver::is_xid_of(driver::xid_kind::needs_reset,
                                                static_cast<std::uint64_t>(each.number));
  });
  const xid_facts& shown = hardware == all.xids.rend() ? all.xids.back() : *hardware;
  made.result = hardware == all.xids.rend() ? verdict::warning : verdict::problem;
  made.seen = std::to_string(all.xids.size()) + " in the kernel's log, such as " + shown.text;
  made.why = hardware == all.xids.rend()
                 ? "13, 31, 43 and 45 are usually a program's fault; its memory was freed"
                 : "the GPU itself has failed; its memory contents are lost";
  made.remedy =
      hardware == all.xids.rend()
          ? "run compute-sanitizer on that program"
          : "drain the node; nvidia-smi --gpu-reset or a reboot; see NVIDIA's Xid catalogue";
  return made;
}

check vmm_support(const facts& all) {
  check made;
  if (none_known(all, made, has_cuda)) {
    return made;
  }
  for (const gpu_facts& gpu : all.gpus) {
    for (const cuda_gpu_view& each : gpu.cuda) {
      if (each.vmm == false || each.file_handles == false) {
        made.result = verdict::problem;
        made.seen = short_name(gpu) + " cannot export virtual memory as file descriptors";
        made.why = "segments of backend cuda-vmm cannot be created on it";
        made.remedy = "share cudaMalloc memory instead: client::share, backend cuda-ipc";
        return made;
      }
    }
  }
  made.result = verdict::ok;
  made.seen = "virtual memory and its export as file descriptors work on every GPU";
  return made;
}

check rdma(const facts& all) {
  check made;
  if (none_known(all, made, [](const gpu_facts& gpu) {
        return has_cuda(gpu) && gpu.cuda.front().rdma_vmm.has_value();
      })) {
    return made;
  }
  std::string with;
  std::string without;
  bool only_plain = false;
  for (const gpu_facts& gpu : all.gpus) {
    if (!has_cuda(gpu)) {
      continue;
    }
    // All instances of a GPU have the same attributes.
    const cuda_gpu_view& cuda = gpu.cuda.front();
    std::string& list = cuda.rdma_vmm == true ? with : without;
    list += (list.empty() ? "" : ", ") + short_name(gpu);
    if (cuda.rdma_vmm != true) {
      list += !cuda.rdma_vmm ? " (unknown)" : cuda.rdma == true ? " (cudaMalloc memory only)" : "";
      only_plain = only_plain || cuda.rdma == true;
    }
  }
  if (without.empty()) {
    made.result = verdict::ok;
    made.seen = "memory created by gpushm is RDMA capable on every GPU: " + with;
    return made;
  }
  made.result = verdict::note;
  made.seen = "memory created by gpushm is not RDMA capable on " + without +
              (with.empty() ? "" : "; it is on " + with);
  made.why = "RDMA libraries (verbs, UCX, NVSHMEM, gdrcopy) reject it; sharing does not need it";
  made.remedy = only_plain ? "share cudaMalloc memory: client::share, backend cuda-ipc"
                           : "use device host, whose memory can be registered with the NIC, or "
                             "another GPU";
  return made;
}

check peer_access(const facts& all) {
  check made;
  std::size_t known = 0;
  for (const pair_facts& pair : all.pairs) {
    if (!pair.access) {
      continue;
    }
    ++known;
    if (!*pair.access) {
      made.result = verdict::warning;
      made.seen = short_name(all.gpus[pair.from]) + " has no peer access to " +
                  short_name(all.gpus[pair.to]);
      made.why =
          "memory on one GPU cannot be mapped on the other; opening it with device= the other "
          "fails";
      made.remedy = "use one GPU on both sides; nvidia-smi topo -p2p r shows why (MIG, IOMMU, ACS)";
      return made;
    }
  }
  for (const gpu_facts& gpu : all.gpus) {
    if (!gpu.nvml) {
      continue;
    }
    const auto& links = gpu.nvml->links;
    const auto down = std::count_if(
        links.begin(), links.end(), [](const nvlink_view& each) { return !each.active; });
    if (down > 0 && static_cast<std::size_t>(down) < links.size()) {
      made.result = verdict::warning;
      made.seen = std::to_string(down) + " of " + std::to_string(links.size()) + " NVLinks of " +
                  short_name(gpu) + " are down";
      made.why = "peer access has less bandwidth";
      made.remedy = "on the host: nvidia-smi nvlink -s; dmesg | grep NVLink";
      return made;
    }
  }
  if (known == 0) {
    made.seen = all.gpus.size() < 2 ? "needs two GPUs" : unknown("CUDA shows fewer than two GPUs");
    return made;
  }
  made.result = verdict::ok;
  made.seen = "every GPU that CUDA shows has peer access to every other";
  const auto fastest = std::max_element(
      all.pairs.begin(), all.pairs.end(), [](const pair_facts& a, const pair_facts& b) {
        return a.links < b.links;
      });
  if (fastest->links > 0) {
    made.seen += ", over up to " + std::to_string(fastest->links) + " NVLinks" +
                 (fastest->through_switch ? " through switches" : "");
  }
  return made;
}

check imex(const facts& all) {
  check made;
  for (const device_node_facts& node : all.nodes) {
    if (node.path.starts_with("/dev/nvidia-caps-imex-channels/") && node.open_error != 0) {
      made.result = verdict::warning;
      made.seen = node.path + " " + why_not_opened(node.open_error);
      made.why = "memory with fabric handles cannot be created or opened";
      made.remedy =
          "give the container the channel: a ComputeDomain's claim, or the channel's CDI device";
      return made;
    }
  }
  if (all.imex_channels.empty()) {
    made.seen = "no IMEX channel";
    made.why =
        "fabric handles then fail with CUDA_ERROR_NOT_PERMITTED (800), whatever the device's "
        "attribute says; sharing on one machine does not need them";
    return made;
  }
  made.result = verdict::ok;
  made.seen = std::to_string(all.imex_channels.size()) + " IMEX channels";
  return made;
}

}  // namespace gpushm::inspect::rules
