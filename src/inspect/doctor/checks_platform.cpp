// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/text/text.hpp"
#include "inspect/doctor/rules.hpp"

namespace gpushm::inspect::rules {

namespace {

/// The third field of "user:role:type:level".
std::string type_of(const std::string& context) {
  const auto fields = base::split(context, ":");
  return fields.size() > 2 ? std::string(fields[2]) : context;
}

/// Whether owner and mode allow this process to use a node.
bool mode_allows(const file_status& node, const process_facts& self) {
  constexpr unsigned int cap_dac_override = 1;
  const bool overrides = self.capabilities && ((*self.capabilities >> cap_dac_override) & 1U) != 0;
  return overrides || (node.mode & 06U) == 06U ||
         (node.uid == self.uid && (node.mode & 0600U) == 0600U);
}

/// The first node that only SELinux can have denied; null: none.
const device_node_facts* denied_node(const facts& facts) {
  const auto found =
      std::find_if(facts.nodes.begin(), facts.nodes.end(), [&facts](const device_node_facts& node) {
        return node.open_error == EACCES && node.status && mode_allows(*node.status, facts.self);
      });
  return found == facts.nodes.end() ? nullptr : &*found;
}

bool is_denied_socket(const facts& facts) {
  return facts.broker && !facts.broker->reachable &&
         (facts.broker->problem.find("EACCES") != std::string::npos ||
          facts.broker->problem.find("Permission denied") != std::string::npos);
}

std::string label_of(const facts& facts, const std::string& path) {
  const auto found = facts.selinux.labels.find(path);
  return found == facts.selinux.labels.end() ? std::string() : type_of(found->second);
}

std::string with_label(const facts& facts, const std::string& path) {
  const std::string label = label_of(facts, path);
  return label.empty() ? path : fmt::format("{} ({})", path, label);
}

constexpr const char* socket_remedy =
    "on the host, after each start of the broker: chcon -Rt container_file_t /run/gpushm/d (a "
    "volume with :z does the same); if the denial is \"connectto\", a policy: ausearch -m avc -ts "
    "recent | audit2allow -M gpushm && semodule -i gpushm.pp";

/// What containers on this host will be denied; a note, because their types are not known here.
std::optional<check> host_findings(const facts& facts, const std::string& seen) {
  for (const auto& [path, context] : facts.selinux.labels) {
    const std::string label = type_of(context);
    if (path.starts_with("/dev/nvidia") && label != "container_file_t" &&
        facts.selinux.container_use_devices == false) {
      return finding(
          verdict::note,
          fmt::format("{}; container_use_devices is off, and {} is {}", seen, path, label),
          "containers of type container_t then may not use GPUs: \"Insufficient Permissions\", and "
          "\"Permission denied\" in spite of mode 0666",
          "setsebool -P container_use_devices=on, unless the containers have another type");
    }
  }
  for (const auto& [path, context] : facts.selinux.labels) {
    if (path.starts_with("/run/gpushm/") && type_of(context) != "container_file_t") {
      return finding(verdict::note,
                     fmt::format("{}; {} is {}", seen, path, type_of(context)),
                     "containers of type container_t may not connect to a socket of that type",
                     socket_remedy);
    }
  }
  return std::nullopt;
}

}  // namespace

check platform(const facts& facts) {
  if (facts.platform == "wsl2") {
    const bool has_gpu = std::any_of(facts.gpus.begin(),
                                     facts.gpus.end(),
                                     [](const gpu_facts& gpu) { return !gpu.cuda.empty(); });
    return finding(
        verdict::note,
        "this is WSL2: the driver is Windows's, and the GPU is reached through /dev/dxg",
        "CUDA programs and gpushm with host memory work; there is no kernel module, no "
        "/dev/nvidia*, "
        "no MIG and no CDI document of these; whether processes can share GPU memory depends on "
        "the "
        "driver, and gpushm has not measured it",
        has_gpu
            ? "gpushm doctor without --no-selftest tries it; update the driver in Windows, and "
              "never install one in WSL2"
            : "start the container with the GPU (docker run --gpus all), or update the driver in "
              "Windows and run wsl --shutdown; never install a driver in WSL2");
  }
  if (facts.platform == "tegra") {
    return finding(
        verdict::note,
        fmt::format("this is Tegra{}: the GPU is integrated, and its driver is nvgpu",
                    facts.model.empty() ? "" : fmt::format(" ({})", facts.model)),
        "CUDA programs and gpushm with host memory work; there is no nvidia-uvm, no MIG and little "
        "of NVML; whether processes can share GPU memory depends on the release of JetPack, and "
        "gpushm has not measured it",
        "gpushm doctor without --no-selftest tries it; containers get the GPU by --runtime nvidia, "
        "or by a document of nvidia-ctk cdi generate --mode=csv");
  }
  return driver_expected(facts) ? finding(verdict::ok, "NVIDIA's driver for Linux")
                                : finding(verdict::not_applicable, "no NVIDIA driver");
}

std::string platform_remedy(const facts& facts, std::string_view id) {
  if (id != "libcuda" && id != "cuinit") {
    return {};
  }
  if (facts.platform == "wsl2") {
    return "update the driver in Windows and run wsl --shutdown; in a container: --gpus all, which "
           "mounts /usr/lib/wsl and /dev/dxg";
  }
  return "in a container: --runtime nvidia; otherwise: dmesg | grep nvgpu, and a user in the "
         "groups "
         "video and render";
}

check selinux(const facts& facts) {
  const selinux_facts& state = facts.selinux;
  if (!state.present) {
    return finding(verdict::not_applicable, "no SELinux");
  }
  const std::string own =
      state.context.empty() ? "" : fmt::format(", this process is {}", type_of(state.context));
  if (state.enforcing == false) {
    return finding(verdict::ok, "permissive" + own);
  }
  const std::string seen =
      (state.enforcing ? "enforcing" : unknown("whether it is enforcing is not visible")) + own;
  if (const device_node_facts* node = denied_node(facts)) {
    return finding(
        verdict::problem,
        fmt::format("{}; it may not use {}", seen, with_label(facts, node->path)),
        "SELinux denies the node: its owner and mode allow it (getenforce; ausearch -m avc -ts "
        "recent)",
        "on the host: setsebool -P container_use_devices=on; or for one container: --security-opt "
        "label=disable, in a pod securityContext.seLinuxOptions.type: spc_t");
  }
  if (is_denied_socket(facts)) {
    return finding(
        verdict::problem,
        fmt::format("{}; it may not connect to {}",
                    seen,
                    with_label(facts,
                               facts.broker->socket.empty() ? std::string("the broker's socket")
                                                            : facts.broker->socket)),
        "a container may connect to sockets of type container_file_t, and a directory "
        "below /run is var_run_t (getenforce; ausearch -m avc -ts recent)",
        socket_remedy);
  }
  if (!in_container(facts.self)) {
    if (const auto found = host_findings(facts, seen)) {
      return *found;
    }
  }
  return finding(verdict::ok, seen);
}

std::string holders_text(const facts& facts) {
  constexpr std::size_t shown = 4;
  std::string text;
  std::size_t count = 0;
  for (const node_holder& each : facts.holders) {
    if (count++ < shown) {
      text += fmt::format("{}{} (PID {})", text.empty() ? "" : ", ", each.name, each.pid);
    }
  }
  return count > shown ? fmt::format("{} and {} more", text, count - shown) : text;
}

std::string release_gpus(const facts& facts) {
  const auto held_by = [&facts](std::string_view start) {
    return std::any_of(facts.holders.begin(),
                       facts.holders.end(),
                       [start](const node_holder& each) { return each.name.starts_with(start); });
  };
  std::string text = facts.holders.empty()
                         ? std::string(
                               "stop the processes that have GPUs open (as root on the "
                               "host: fuser -v /dev/nvidia*)")
                         : "stop the processes that have GPUs open: " + holders_text(facts);
  if (facts.holders.empty() || held_by("nvidia-persist")) {
    text += "; systemctl stop nvidia-persistenced";
  }
  return text +
         "; in Kubernetes, where drain leaves DaemonSets: kubectl label node NODE --overwrite "
         "gpushm.dev/agent=off nvidia.com/gpu.deploy.operands=false";
}

}  // namespace gpushm::inspect::rules
