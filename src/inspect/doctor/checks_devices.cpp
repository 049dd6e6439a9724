// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>

#include "base/text/text.hpp"
#include "inspect/doctor/rules.hpp"

namespace gpushm::inspect::rules {

namespace {

std::string remedy_for(int number) {
  switch (number) {
    case EACCES:
      return "on the host: chmod 0666 the node (options nvidia NVreg_DeviceFileMode=0666), or run "
             "with its group";
    case ENXIO:
    case ENODEV:
      return "on the host: modprobe nvidia nvidia_uvm; then try a CUDA program (nvidia-smi does "
             "not use /dev/nvidia-uvm)";
    default:
      return "start the container with the GPU: --device nvidia.com/gpu=0 (CDI), --gpus, or its "
             "resource limits";
  }
}

bool is_all(const std::string& text) {
  return text == "all" || text == "void" || text == "none";
}

std::size_t openable_gpus(const facts& facts) {
  return static_cast<std::size_t>(
      std::count_if(facts.gpus.begin(), facts.gpus.end(), [](const gpu_facts& each) {
        return each.open_error == 0;
      }));
}

/// CUDA_VISIBLE_DEVICES as CUDA reads it: up to the first entry that matches no GPU.
struct visible_list {
  std::size_t useful = 0;  ///< entries before `stop`
  std::string stop;        ///< the first entry that matches no GPU; empty: all match
};

visible_list read_visible(const facts& facts, const std::string& text) {
  visible_list read;
  const std::size_t count = openable_gpus(facts);
  for (const std::string_view entry : base::split(text, ",")) {
    const std::string_view name = base::trim(entry);
    bool known = false;
    if (const auto ordinal = base::number<int>(name)) {
      known = *ordinal >= 0 && static_cast<std::size_t>(*ordinal) < count;
    } else {
      known = std::any_of(facts.gpus.begin(), facts.gpus.end(), [&](const gpu_facts& each) {
        return (!name.empty() && each.uuid.starts_with(name) && each.open_error == 0) ||
               (each.nvml && std::any_of(each.nvml->mig_instances.begin(),
                                         each.nvml->mig_instances.end(),
                                         [&](const mig_instance_view& instance) {
                                           return !name.empty() && instance.uuid.starts_with(name);
                                         }));
      });
    }
    if (!known) {
      read.stop = name;
      return read;
    }
    ++read.useful;
  }
  return read;
}

}  // namespace

check device_nodes(const facts& facts) {
  if (!driver_expected(facts)) {
    return finding(verdict::not_applicable, "no NVIDIA driver");
  }
  std::string denied;
  int worst = 0;
  for (const device_node_facts& node : facts.nodes) {
    if (node.path != "/dev/nvidiactl" && node.path != "/dev/nvidia-uvm") {
      continue;
    }
    if (node.open_error != 0) {
      denied += (denied.empty() ? "" : "; ") + not_opened(node);
      worst = node.open_error;
    }
  }
  if (worst == 0) {
    return finding(verdict::ok, "/dev/nvidiactl and /dev/nvidia-uvm can be opened");
  }
  return finding(verdict::problem,
                 denied,
                 "CUDA needs /dev/nvidiactl and /dev/nvidia-uvm, whichever GPU is used",
                 remedy_for(worst));
}

check gpu_nodes(const facts& facts) {
  std::string denied;
  std::size_t known = 0;
  int last = 0;
  for (const gpu_facts& gpu : facts.gpus) {
    if (!gpu.open_error) {
      continue;
    }
    ++known;
    if (*gpu.open_error != 0) {
      denied += fmt::format("{}/dev/nvidia{} of {} {}",
                            denied.empty() ? "" : "; ",
                            gpu.minor,
                            short_name(gpu),
                            why_not_opened(*gpu.open_error));
      last = *gpu.open_error;
    }
  }
  if (known == 0) {
    return finding(
        verdict::not_applicable,
        facts.gpus.empty() ? "no GPU" : unknown("the GPUs' device numbers are not visible"));
  }
  const std::size_t open = openable_gpus(facts);
  const std::string counts = fmt::format("{} of {} can be opened", open, known);
  if (open == known) {
    return finding(verdict::ok, counts);
  }
  // A container gets only the GPUs that it requested.
  const bool by_intent = in_container(facts.self) && last != EACCES && last != ENXIO;
  return finding(
      open == 0   ? verdict::problem
      : by_intent ? verdict::note
                  : verdict::warning,
      fmt::format("{}: {}", counts, denied),
      "memory on a GPU whose node this process may not open cannot be shared with this process; no "
      "other privilege helps, and without gpushm the driver reports \"invalid argument\"",
      remedy_for(last));
}

check uvm_major(const facts& facts) {
  std::string right;
  for (const device_node_facts& node : facts.nodes) {
    if (!node.status || !node.expected_major || node.status->type != "character device") {
      continue;
    }
    if (node.status->major != *node.expected_major) {
      return finding(
          verdict::problem,
          fmt::format("{} has major {}, the kernel has {}",
                      node.path,
                      node.status->major,
                      *node.expected_major),
          "the major number is reassigned when the module is loaded; nvidia-smi still works with a "
          "stale node, but cuInit fails",
          fmt::format("{}rm {}; nvidia-modprobe -u -c 0{}",
                      in_container(facts.self) ? "on the host: " : "",
                      node.path,
                      in_container(facts.self) ? "; then restart the container" : ""));
    }
    if (node.path == "/dev/nvidia-uvm") {
      right = fmt::format("nvidia-uvm has the kernel's major {}", node.status->major);
    }
  }
  if (right.empty()) {
    return finding(verdict::not_applicable,
                   unknown("no device node, or no entry in /proc/devices"));
  }
  return finding(verdict::ok, right);
}

check visible_devices(const facts& facts) {
  const auto cuda = facts.self.variables.find("CUDA_VISIBLE_DEVICES");
  const auto nvidia = facts.self.variables.find("NVIDIA_VISIBLE_DEVICES");
  if (cuda == facts.self.variables.end() && nvidia == facts.self.variables.end()) {
    return finding(driver_expected(facts) ? verdict::ok : verdict::not_applicable,
                   "neither CUDA_VISIBLE_DEVICES nor NVIDIA_VISIBLE_DEVICES is set");
  }
  std::string seen;
  std::string why;
  if (cuda != facts.self.variables.end()) {
    seen = "CUDA_VISIBLE_DEVICES=" + cuda->second;
  }
  if (nvidia != facts.self.variables.end()) {
    seen += (seen.empty() ? "" : ", ") + ("NVIDIA_VISIBLE_DEVICES=" + nvidia->second);
  }
  if (nvidia != facts.self.variables.end() && nvidia->second != "void" &&
      nvidia->second != "none" && !nvidia->second.empty() && openable_gpus(facts) == 0) {
    return finding(
        verdict::problem,
        seen,
        "NVIDIA_VISIBLE_DEVICES requests GPUs from the container toolkit, which did not start this "
        "container; CUDA does not read that variable",
        "run with the nvidia runtime (runtimeClassName: nvidia), or with CDI");
  }
  if (cuda != facts.self.variables.end() && openable_gpus(facts) > 0) {
    const visible_list read = read_visible(facts, cuda->second);
    const std::string stops =
        fmt::format("CUDA stops at \"{}\", which names no GPU that it can use here", read.stop);
    if (read.useful == 0) {
      return finding(verdict::problem,
                     seen,
                     cuda->second.empty() ? "an empty value hides every GPU from CUDA" : stops,
                     "unset CUDA_VISIBLE_DEVICES: inside a container GPUs are numbered from 0");
    }
    // -1 ends a list deliberately.
    if (!read.stop.empty() && read.stop != "-1") {
      return finding(
          verdict::warning,
          seen,
          fmt::format("{}: of {} entries it uses {}",
                      stops,
                      base::split(cuda->second, ",").size(),
                      read.useful),
          fmt::format("remove \"{}\" from CUDA_VISIBLE_DEVICES, or give this container that GPU",
                      read.stop));
    }
    if (read.useful < openable_gpus(facts)) {
      why =
          "it hides GPUs from enumeration; memory on them can still be opened: only the device "
          "node matters";
    }
  }
  if (nvidia != facts.self.variables.end() && !is_all(nvidia->second) && why.empty()) {
    why = "only the container toolkit reads NVIDIA_VISIBLE_DEVICES; CUDA does not";
  }
  return finding(verdict::ok, seen, why);
}

}  // namespace gpushm::inspect::rules
