// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "base/files/domain_places.hpp"
#include "base/text/text.hpp"
#include "inspect/facts/gather_parts.hpp"

namespace gpushm::inspect {

namespace {

constexpr std::string_view selinux_root = "/sys/fs/selinux/";

/// A file of one line, which the kernel may end with a zero byte; empty if it is missing.
std::string line_in(system& machine, const char* path) {
  std::string text = machine.read(path).value_or(std::string());
  text.erase(std::remove(text.begin(), text.end(), '\0'), text.end());
  return std::string(base::trim(text));
}

/// The value of "1 1" and "1"; nullopt for other text.
std::optional<bool> flag_in(const std::optional<std::string>& text) {
  const std::string_view value = base::trim(text ? std::string_view(*text) : std::string_view());
  if (value.empty() || (value.front() != '0' && value.front() != '1')) {
    return std::nullopt;
  }
  return value.front() == '1';
}

/// "user:role:type:level"; AppArmor's "docker-default (enforce)" is another text.
bool is_context(std::string_view text) {
  return std::count(text.begin(), text.end(), ':') >= 2 &&
         text.find_first_of(" /") == std::string_view::npos;
}

/// Whether a boolean lets containers use nodes with the type of NVIDIA's.
std::optional<bool> devices_allowed(system& machine) {
  std::optional<bool> allowed;
  for (const char* name : {"container_use_devices", "container_use_xserver_devices"}) {
    const auto value = flag_in(machine.read(std::string(selinux_root) + "booleans/" + name));
    if (value) {
      allowed = allowed.value_or(false) || *value;
    }
  }
  return allowed;
}

bool is_tegra(system& machine) {
  for (const char* file :
       {"/proc/device-tree/compatible", "/sys/firmware/devicetree/base/compatible"}) {
    const auto text = machine.read(file);
    if (text && text->find("nvidia,tegra") != std::string::npos) {
      return true;
    }
  }
  // Containers often do not see the device tree.
  const auto markers =
      std::to_array<const char*>({"/etc/nv_tegra_release", "/dev/nvmap", "/dev/nvhost-ctrl"});
  return std::any_of(markers.begin(), markers.end(), [&machine](const char* path) {
    return machine.status(path).has_value();
  });
}

}  // namespace

selinux_facts gather_selinux(system& machine, const std::vector<device_node_facts>& nodes) {
  selinux_facts facts;
  facts.enforcing = flag_in(machine.read(std::string(selinux_root) + "enforce"));
  if (std::string own = line_in(machine, "/proc/self/attr/current"); is_context(own)) {
    facts.context = std::move(own);
  }
  facts.present = facts.enforcing.has_value() || !facts.context.empty();
  if (!facts.present) {
    return facts;
  }
  facts.container_use_devices = devices_allowed(machine);
  std::vector<std::string> paths;
  for (const device_node_facts& node : nodes) {
    if (node.status) {
      paths.push_back(node.path);
    }
  }
  for (const std::string& name : machine.list(base::machine_domains)) {
    paths.push_back(base::socket_in(base::machine_domains, name));
  }
  for (const std::string& path : paths) {
    if (auto label = machine.label(path)) {
      facts.labels[path] = std::move(*label);
    }
  }
  return facts;
}

void gather_platform(system& machine, facts& facts) {
  if (machine.status("/dev/dxg") || facts.kernel.find("WSL2") != std::string::npos) {
    facts.platform = "wsl2";
    return;
  }
  // The usual driver also supports some modules of Tegra, and GPUs in their slots.
  const bool usual_driver =
      facts.device_majors.count("nvidia-uvm") != 0 ||
      std::any_of(facts.nodes.begin(), facts.nodes.end(), [](const device_node_facts& node) {
        return node.path == "/dev/nvidia-uvm" && node.status;
      });
  if (!usual_driver && is_tegra(machine)) {
    facts.platform = "tegra";
    facts.model = line_in(machine, "/proc/device-tree/model");
  }
}

}  // namespace gpushm::inspect
