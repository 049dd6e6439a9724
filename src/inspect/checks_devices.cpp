// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/text.hpp"
#include "inspect/rules.hpp"

namespace gpushm::inspect::rules {

namespace {

std::string remedy_for(int number) {
  switch (number) {
    case EACCES:
      return "on the host: chmod 0666 the node (options nvidia NVreg_DeviceFileMode=0666), or run "
             "with its group";
    case ENXIO:
    case ENODEV:
      return "on the host: check that nvidia-smi works (modprobe nvidia nvidia_uvm)";
    default:
      return "start the container with the GPU: --device nvidia.com/gpu=0 (CDI), --gpus, or in its "
             "resources";
  }
}

bool is_all(const std::string& text) {
  return text == "all" || text == "void" || text == "none";
}

std::size_t openable_gpus(const facts& all) {
  return static_cast<std::size_t>(
      std::count_if(all.gpus.begin(), all.gpus.end(), [](const gpu_facts& each) {
        return each.open_error == 0;
      }));
}

/// The entry of CUDA_VISIBLE_DEVICES at which CUDA stops reading, because it names nothing; empty
/// when all do.
std::string first_useless_entry(const facts& all, const std::string& text) {
  const std::size_t count = openable_gpus(all);
  for (const std::string_view entry : base::split(text, ",")) {
    const std::string_view name = base::trim(entry);
    if (const auto ordinal = base::number<int>(name)) {
      if (*ordinal < 0 || static_cast<std::size_t>(*ordinal) >= count) {
        return std::string(name);
      }
      continue;
    }
    const bool known = std::any_of(all.gpus.begin(), all.gpus.end(), [&](const gpu_facts& each) {
      return (!name.empty() && each.uuid.starts_with(name) && each.open_error == 0) ||
             (each.nvml && std::any_of(each.nvml->mig_instances.begin(),
                                       each.nvml->mig_instances.end(),
                                       [&](const mig_instance_view& instance) {
                                         return !name.empty() && instance.uuid.starts_with(name);
                                       }));
    });
    if (!known) {
      return std::string(name);
    }
  }
  return {};
}

}  // namespace

check device_nodes(const facts& all) {
  check made;
  if (!driver_expected(all)) {
    made.seen = "no NVIDIA driver here";
    return made;
  }
  int worst = 0;
  for (const device_node_facts& node : all.nodes) {
    if (node.path != "/dev/nvidiactl" && node.path != "/dev/nvidia-uvm") {
      continue;
    }
    if (node.open_error != 0) {
      made.seen +=
          (made.seen.empty() ? "" : "; ") + node.path + " " + why_not_opened(node.open_error);
      worst = node.open_error;
    }
  }
  if (worst == 0) {
    made.result = verdict::ok;
    made.seen = "/dev/nvidiactl and /dev/nvidia-uvm can be opened";
    return made;
  }
  made.result = verdict::problem;
  made.why = "CUDA needs both, whichever GPU is used";
  made.remedy = remedy_for(worst);
  return made;
}

check gpu_nodes(const facts& all) {
  check made;
  std::string denied;
  std::size_t known = 0;
  int last = 0;
  for (const gpu_facts& gpu : all.gpus) {
    if (!gpu.open_error) {
      continue;
    }
    ++known;
    if (*gpu.open_error != 0) {
      denied += (denied.empty() ? "" : "; ") + ("/dev/nvidia" + std::to_string(gpu.minor)) +
                " of " + short_name(gpu) + " " + why_not_opened(*gpu.open_error);
      last = *gpu.open_error;
    }
  }
  if (known == 0) {
    made.seen = all.gpus.empty() ? "no GPU here" : "the GPUs' device numbers are not to be seen";
    return made;
  }
  const std::size_t open = openable_gpus(all);
  made.seen = std::to_string(open) + " of " + std::to_string(known) + " can be opened";
  if (open == known) {
    made.result = verdict::ok;
    return made;
  }
  made.seen += ": " + denied;
  made.result = open == 0 ? verdict::problem : verdict::warning;
  made.why =
      "memory on a GPU whose node this process may not open cannot be shared with it, by nobody "
      "and "
      "with no privilege but that one; without gpushm the driver says \"invalid argument\"";
  made.remedy = remedy_for(last);
  return made;
}

check uvm_major(const facts& all) {
  check made;
  for (const device_node_facts& node : all.nodes) {
    if (!node.status || !node.expected_major || node.status->type != "character device") {
      continue;
    }
    if (node.status->major != *node.expected_major) {
      made.result = verdict::problem;
      made.seen = node.path + " has major " + std::to_string(node.status->major) +
                  ", the kernel has " + std::to_string(*node.expected_major);
      made.why =
          "the number is given out anew when the module is loaded; nvidia-smi still works with a "
          "stale node, cuInit does not";
      made.remedy =
          in_container(all.self)
              ? "on the host: nvidia-ctk cdi generate again; then start the container anew"
              : "rm " + node.path + "; nvidia-modprobe -u -c 0";
      return made;
    }
    if (node.path == "/dev/nvidia-uvm") {
      made.result = verdict::ok;
      made.seen = "nvidia-uvm has the kernel's major " + std::to_string(node.status->major);
    }
  }
  if (made.seen.empty()) {
    made.seen = "no node or no entry in /proc/devices to compare";
  }
  return made;
}

check visible_devices(const facts& all) {
  check made;
  const auto cuda = all.self.variables.find("CUDA_VISIBLE_DEVICES");
  const auto nvidia = all.self.variables.find("NVIDIA_VISIBLE_DEVICES");
  if (cuda == all.self.variables.end() && nvidia == all.self.variables.end()) {
    made.result = driver_expected(all) ? verdict::ok : verdict::not_applicable;
    made.seen = "neither CUDA_VISIBLE_DEVICES nor NVIDIA_VISIBLE_DEVICES is set";
    return made;
  }
  if (cuda != all.self.variables.end()) {
    made.seen = "CUDA_VISIBLE_DEVICES=" + cuda->second;
  }
  if (nvidia != all.self.variables.end()) {
    made.seen += (made.seen.empty() ? "" : ", ") + ("NVIDIA_VISIBLE_DEVICES=" + nvidia->second);
  }
  if (nvidia != all.self.variables.end() && nvidia->second != "void" && nvidia->second != "none" &&
      !nvidia->second.empty() && openable_gpus(all) == 0) {
    made.result = verdict::problem;
    made.why =
        "NVIDIA_VISIBLE_DEVICES asks the container toolkit for GPUs, and nobody acted on it: CUDA "
        "does not read it";
    made.remedy = "run with the nvidia runtime (runtimeClassName: nvidia), or with CDI";
    return made;
  }
  if (cuda != all.self.variables.end() && openable_gpus(all) > 0) {
    const std::string useless = first_useless_entry(all, cuda->second);
    if (cuda->second.empty() || !useless.empty()) {
      made.result = verdict::problem;
      made.why = cuda->second.empty()
                     ? "empty hides every GPU from CUDA"
                     : "CUDA stops at \"" + useless + "\", which names no GPU that it can use here";
      made.remedy = "unset CUDA_VISIBLE_DEVICES: inside a container the GPUs count from 0 again";
      return made;
    }
    if (base::split(cuda->second, ",").size() < openable_gpus(all)) {
      made.why =
          "it hides GPUs from enumeration; memory on them can be opened all the same, only the "
          "device node matters";
    }
  }
  if (nvidia != all.self.variables.end() && !is_all(nvidia->second) && made.why.empty()) {
    made.why = "NVIDIA_VISIBLE_DEVICES speaks to the container toolkit; CUDA does not read it";
  }
  made.result = verdict::ok;
  return made;
}

check cdi(const facts& all) {
  check made;
  if (all.cdi.empty()) {
    made.seen = "no CDI document in /etc/cdi or /var/run/cdi";
    return made;
  }
  std::size_t devices = 0;
  for (const cdi_facts& each : all.cdi) {
    devices += each.devices.size();
    if (!each.problem.empty()) {
      made.result = verdict::warning;
      made.seen = each.path + ": " + each.problem;
      made.why =
          "engines then say \"unresolvable CDI devices\", or start containers without the GPU";
      made.remedy = "nvidia-ctk cdi generate --output=" + each.path;
      return made;
    }
  }
  made.result = verdict::ok;
  made.seen = std::to_string(all.cdi.size()) +
              (all.cdi.size() == 1 ? " document, " : " documents, ") + std::to_string(devices) +
              " devices";
  return made;
}

}  // namespace gpushm::inspect::rules
