// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "base/segments/xid.hpp"
#include "inspect/doctor/rules.hpp"

namespace gpushm::inspect::rules {

namespace {

template <typename Known>
bool none_known(const facts& facts, Known&& known) {
  return std::none_of(facts.gpus.begin(), facts.gpus.end(), known);
}

/// The result of a rule whose value is unknown for every GPU.
check not_reported(const facts& facts) {
  return finding(verdict::not_applicable,
                 facts.gpus.empty() ? "no GPU" : unknown("the driver does not report it"));
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
std::string names_of(const facts& facts) {
  std::map<std::string, int> counts;
  for (const gpu_facts& gpu : facts.gpus) {
    ++counts[gpu.name.empty() ? "GPU" : gpu.name];
  }
  std::string text;
  for (const auto& [name, count] : counts) {
    text += (text.empty() ? "" : ", ") + (count == 1 ? "" : fmt::format("{} x ", count)) + name;
  }
  return text;
}

}  // namespace

check gpus(const facts& facts) {
  if (facts.gpus.empty()) {
    return finding(verdict::not_applicable, "no GPU");
  }
  std::string seen = names_of(facts) + ":";
  for (const gpu_facts& gpu : facts.gpus) {
    seen += " " + (gpu.uuid.empty() ? gpu.pci_address : gpu.uuid);
    seen += gpu.sharing.empty() || gpu.sharing == "full" ? "" : fmt::format(" ({})", gpu.sharing);
  }
  for (const gpu_facts& gpu : facts.gpus) {
    const bool shown = gpu.nvml.has_value() || !gpu.cuda.empty();
    if (gpu.open_error == 0 && !shown && facts.driver.nvml.problem.empty() &&
        facts.driver.failure.empty()) {
      return finding(verdict::problem,
                     short_name(gpu) + " can be opened, but neither NVML nor CUDA lists it",
                     "the kernel module lists the GPU, but it does not respond",
                     fmt::format("on the host: dmesg | grep NVRM; {}; then nvidia-smi --gpu-reset, "
                                 "or a reboot",
                                 release_gpus(facts)));
    }
  }
  return finding(verdict::ok, seen);
}

check mig(const facts& facts) {
  if (none_known(facts, [](const gpu_facts& gpu) {
        return gpu.nvml && (gpu.nvml->mig.has_value() || !gpu.nvml->uuid.empty());
      })) {
    return not_reported(facts);
  }
  std::size_t instances = 0;
  bool on = false;
  for (const gpu_facts& gpu : facts.gpus) {
    if (!gpu.nvml) {
      continue;
    }
    instances += gpu.nvml->mig_instances.size();
    on = on || gpu.nvml->mig == true;
    if (gpu.nvml->mig == true && gpu.nvml->mig_instances.empty()) {
      return finding(
          verdict::problem,
          fmt::format("MIG mode of {} is on, but it has no instance here", short_name(gpu)),
          "CUDA shows only the instances of a GPU in MIG mode",
          fmt::format("in a container: request nvidia.com/mig-…; on the host: nvidia-smi mig -lgip "
                      "lists the profiles of this GPU, and nvidia-smi mig -cgi ID -C creates an "
                      "instance; or to end MIG mode, {}, then nvidia-smi -mig 0",
                      release_gpus(facts)));
    }
    if (gpu.nvml->mig && gpu.nvml->mig_pending && *gpu.nvml->mig != *gpu.nvml->mig_pending) {
      return finding(verdict::warning,
                     fmt::format("MIG mode of {} will be {} after a reset",
                                 short_name(gpu),
                                 *gpu.nvml->mig_pending ? "on" : "off"),
                     "the mode does not change before the reset",
                     release_gpus(facts) + "; then nvidia-smi --gpu-reset");
    }
  }
  for (const device_node_facts& node : facts.nodes) {
    if (on && node.path.starts_with("/dev/nvidia-caps/") && node.open_error == EACCES) {
      return finding(verdict::problem,
                     not_opened(node),
                     "an instance needs its GPU's node and two of these",
                     fmt::format("on the host: chmod 0444 {} (NVreg_DeviceFileMode)", node.path));
    }
  }
  if (!on) {
    return finding(verdict::ok, "off");
  }
  return finding(verdict::ok,
                 fmt::format("{} instances", instances),
                 "memory is shared within an instance only: instances have no peer access");
}

check compute_mode(const facts& facts) {
  if (none_known(facts, [](const gpu_facts& gpu) { return !compute_mode_of(gpu).empty(); })) {
    return not_reported(facts);
  }
  for (const gpu_facts& gpu : facts.gpus) {
    const std::string mode = compute_mode_of(gpu);
    if (mode.empty() || mode == "default") {
      continue;
    }
    return finding(verdict::problem,
                   fmt::format("compute mode of {} is {}", short_name(gpu), mode),
                   mode == "prohibited"
                       ? "no process may use it"
                       : "a second process gets CUDA_ERROR_DEVICE_UNAVAILABLE (46): sharing fails",
                   fmt::format("on the host: nvidia-smi -i {} -c DEFAULT", gpu.pci_address));
  }
  return finding(verdict::ok, "default");
}

check mps(const facts& facts) {
  if (facts.gpus.empty()) {
    return finding(verdict::not_applicable, "no GPU");
  }
  if (!facts.mps) {
    return finding(verdict::ok, "MPS is not running");
  }
  return finding(verdict::warning,
                 "the pipe of an MPS control daemon exists",
                 "clients of one MPS server share faults: a crash of one terminates the others",
                 "nothing, if MPS is intended; echo quit | nvidia-cuda-mps-control stops it");
}

check virtualization(const facts& facts) {
  if (none_known(facts, [](const gpu_facts& gpu) {
        return gpu.nvml && !gpu.nvml->virtualization.empty();
      })) {
    return not_reported(facts);
  }
  std::string seen;
  for (const gpu_facts& gpu : facts.gpus) {
    if (!gpu.nvml || gpu.nvml->virtualization.empty()) {
      continue;
    }
    seen = gpu.nvml->virtualization;
    if (seen == "vgpu") {
      return finding(
          verdict::warning,
          short_name(gpu) + " is a vGPU",
          "what vGPUs can share depends on profile and licence: unified memory, peer access and "
          "profilers may be disabled (not measured by gpushm)",
          "gpushm doctor without --no-selftest shows what works");
    }
  }
  return finding(verdict::ok, seen);
}

check persistence(const facts& facts) {
  if (none_known(facts, [](const gpu_facts& gpu) {
        return gpu.nvml && gpu.nvml->persistence.has_value();
      })) {
    return not_reported(facts);
  }
  const auto off = std::find_if(facts.gpus.begin(), facts.gpus.end(), [](const gpu_facts& gpu) {
    return gpu.nvml && gpu.nvml->persistence == false;
  });
  if (off == facts.gpus.end()) {
    return finding(verdict::ok, "on");
  }
  return finding(verdict::warning,
                 fmt::format("persistence mode of {} is off", short_name(*off)),
                 "the first use of an idle GPU then takes a second or more",
                 "on the host: systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1");
}

check xid(const facts& facts) {
  if (!facts.xids_readable) {
    return finding(verdict::not_applicable,
                   unknown("this process may not read the kernel's log"),
                   {},
                   "on the host: dmesg | grep Xid");
  }
  if (facts.xids.empty()) {
    return finding(driver_expected(facts) ? verdict::ok : verdict::not_applicable,
                   "none in the kernel's log");
  }
  const auto last_of = [&](auto is_such) {
    return std::find_if(facts.xids.rbegin(), facts.xids.rend(), [&](const xid_facts& each) {
      return each.number > 0 && is_such(static_cast<std::uint64_t>(each.number));
    });
  };
  const auto fatal = last_of(base::is_fatal_for_memory);
  const auto hardware = fatal != facts.xids.rend() ? fatal : last_of([](auto number) {
    return base::is_xid_of(base::xid_kind::needs_reset, number);
  });
  const std::string count = fmt::format("{} in the kernel's log, such as ", facts.xids.size());
  if (hardware == facts.xids.rend()) {
    const xid_facts& last = facts.xids.back();
    const base::known_xid* const known =
        last.number > 0 ? base::find_xid(static_cast<std::uint64_t>(last.number)) : nullptr;
    if (known == nullptr) {
      return finding(verdict::warning,
                     count + last.text,
                     fmt::format("gpushm does not know the effect of Xid {}", last.number),
                     "see NVIDIA's Xid catalogue");
    }
    if (known->kind == base::xid_kind::contained) {
      return finding(verdict::warning,
                     count + last.text,
                     "a contained error of the GPU; only the programs that it killed are affected",
                     "on the host: nvidia-smi -q -d ECC,ROW_REMAPPER shows whether a reset is due");
    }
    return finding(verdict::warning,
                   count + last.text,
                   "usually a program's fault; its memory was freed",
                   "run compute-sanitizer on that program");
  }
  return finding(verdict::problem,
                 count + hardware->text,
                 fatal == facts.xids.rend()
                     ? std::string("the GPU itself has failed; a reset loses its memory contents")
                     : fmt::format("the GPU's memory contents are gone or wrong; its segments end "
                                   "once gpushmd, or gpushm lost-gpu --xid {}, reports it",
                                   fatal->number),
                 fmt::format("drain the node; {}; then nvidia-smi --gpu-reset, or a reboot; see "
                             "NVIDIA's Xid catalogue",
                             release_gpus(facts)));
}

check vmm_support(const facts& facts) {
  if (none_known(facts, has_cuda)) {
    return not_reported(facts);
  }
  for (const gpu_facts& gpu : facts.gpus) {
    for (const cuda_gpu_view& each : gpu.cuda) {
      if (each.vmm == false || each.file_handles == false) {
        return finding(verdict::problem,
                       short_name(gpu) + " cannot export virtual memory as file descriptors",
                       "segments of backend cuda-vmm cannot be created on it",
                       "share cudaMalloc memory instead: client::share, backend cuda-ipc");
      }
    }
  }
  return finding(verdict::ok,
                 "virtual memory and its export as file descriptors work on every GPU");
}

check rdma(const facts& facts) {
  if (none_known(facts, [](const gpu_facts& gpu) {
        return has_cuda(gpu) && gpu.cuda.front().rdma_vmm.has_value();
      })) {
    return not_reported(facts);
  }
  std::string with;
  std::string without;
  bool only_plain = false;
  for (const gpu_facts& gpu : facts.gpus) {
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
    return finding(verdict::ok, "memory created by gpushm is RDMA capable on every GPU: " + with);
  }
  return finding(
      verdict::note,
      fmt::format("memory created by gpushm is not RDMA capable on {}{}{}",
                  without,
                  with.empty() ? "" : "; it is on ",
                  with),
      "RDMA libraries (verbs, UCX, NVSHMEM, gdrcopy) reject it; sharing does not need it",
      only_plain ? "share cudaMalloc memory: client::share, backend cuda-ipc"
                 : "use device host, whose memory can be registered with the NIC, or another GPU");
}

check peer_access(const facts& facts) {
  std::size_t known = 0;
  for (const pair_facts& pair : facts.pairs) {
    if (!pair.access) {
      continue;
    }
    ++known;
    if (!*pair.access) {
      return finding(
          verdict::warning,
          fmt::format("{} has no peer access to {}",
                      short_name(facts.gpus[pair.from]),
                      short_name(facts.gpus[pair.to])),
          "memory on one GPU cannot be mapped on the other; opening it with device= the other "
          "fails",
          "use one GPU on both sides; nvidia-smi topo -p2p r shows why (MIG, IOMMU, ACS)");
    }
  }
  for (const gpu_facts& gpu : facts.gpus) {
    if (!gpu.nvml) {
      continue;
    }
    const auto& links = gpu.nvml->links;
    const auto down = std::count_if(
        links.begin(), links.end(), [](const nvlink_view& each) { return !each.active; });
    if (down > 0 && static_cast<std::size_t>(down) < links.size()) {
      return finding(
          verdict::warning,
          fmt::format("{} of {} NVLinks of {} are down", down, links.size(), short_name(gpu)),
          "peer access has less bandwidth",
          "on the host: nvidia-smi nvlink -s; dmesg | grep NVLink");
    }
  }
  if (known == 0) {
    return finding(
        verdict::not_applicable,
        facts.gpus.size() < 2 ? "needs two GPUs" : unknown("CUDA shows fewer than two GPUs"));
  }
  std::string seen = "every GPU that CUDA shows has peer access to every other";
  const auto fastest = std::max_element(
      facts.pairs.begin(), facts.pairs.end(), [](const pair_facts& a, const pair_facts& b) {
        return a.links < b.links;
      });
  if (fastest->links > 0) {
    seen += fmt::format(", over up to {} NVLinks{}",
                        fastest->links,
                        fastest->through_switch ? " through switches" : "");
  }
  return finding(verdict::ok, seen);
}

check imex(const facts& facts) {
  for (const device_node_facts& node : facts.nodes) {
    if (node.path.starts_with("/dev/nvidia-caps-imex-channels/") && node.open_error != 0) {
      return finding(
          verdict::warning,
          not_opened(node),
          "memory with fabric handles cannot be created or opened",
          "give the container the channel: a ComputeDomain's claim, or the channel's CDI device");
    }
  }
  if (facts.imex_channels.empty()) {
    return finding(
        verdict::not_applicable,
        "no IMEX channel",
        "fabric handles then fail with CUDA_ERROR_NOT_PERMITTED (800), whatever the device's "
        "attribute says; sharing on one machine does not need them");
  }
  return finding(verdict::ok, fmt::format("{} IMEX channels", facts.imex_channels.size()));
}

}  // namespace gpushm::inspect::rules
