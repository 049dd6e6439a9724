// SPDX-License-Identifier: Apache-2.0
#include "base/text/text.hpp"
#include "gpu/driver/device_text.hpp"
#include "inspect/facts/gather_parts.hpp"

namespace gpushm::inspect {

namespace {

/// "NVRM: Xid (PCI:0000:18:00): 79, pid=1234, GPU has fallen off the bus."
std::vector<xid_facts> parse_xids(std::string_view log) {
  std::vector<xid_facts> found;
  for (const std::string_view line : base::lines_of(log)) {
    constexpr std::string_view sign = "NVRM: Xid (PCI:";
    const std::size_t at = line.find(sign);
    const std::size_t close = line.find("): ", at);
    if (at == std::string_view::npos || close == std::string_view::npos) {
      continue;
    }
    xid_facts each;
    const std::string address(line.substr(at + sign.size(), close - at - sign.size()));
    each.pci_address = driver::normal_pci_address(address + ".0").value_or(address);
    const std::string_view rest = line.substr(close + 3);
    each.number =
        base::number<int>(rest.substr(0, rest.find_first_not_of("0123456789"))).value_or(0);
    each.text = std::string(line.substr(at));
    found.push_back(std::move(each));
  }
  return found;
}

/// gVisor's version string, whatever the host's kernel is.
constexpr std::string_view gvisor_version =
    "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016";

/// Engines name a container's private /dev/shm "shm".
bool shm_is_private(std::string_view mounts) {
  bool own = false;
  for (const std::string_view line : base::lines_of(mounts)) {
    const auto words = base::split(line, " ");
    const std::size_t dash = line.find(" - ");
    if (words.size() > 5 && words[4] == "/dev/shm" && dash != std::string_view::npos) {
      const auto after = base::split(line.substr(dash + 3), " ");
      own = after.size() > 1 && after[1] == "shm";
    }
  }
  return own;
}

}  // namespace

facts gather(system& machine,
             const std::function<driver_view()>& probe,
             const gather_options& options) {
  facts all;
  all.device_majors = gather_majors(machine);
  all.nodes = gather_nodes(machine, all.device_majors);
  all.driver = probe();
  all.kernel = std::string(base::trim(machine.read("/proc/sys/kernel/osrelease").value_or("")));
  all.gvisor = base::trim(machine.read("/proc/version").value_or("")) == gvisor_version;
  gather_platform(machine, all);
  all.selinux = gather_selinux(machine, all.nodes);
  all.holders = machine.holders();
  all.self = gather_process(machine, "self");
  if (all.gvisor) {
    all.self.container.runtime = "gvisor";
  }
  if (options.peer_pid != 0) {
    all.peer = gather_process(machine, std::to_string(options.peer_pid));
  }
  gather_software(machine, all);
  const auto pipe = all.self.variables.find("CUDA_MPS_PIPE_DIRECTORY");
  all.mps = machine
                .status((pipe == all.self.variables.end() ? "/tmp/nvidia-mps" : pipe->second) +
                        "/control")
                .has_value();
  all.gpus = gather_gpus(machine, all);
  all.pairs = gather_pairs(all);
  if (const auto log = machine.read("/dev/kmsg")) {
    all.xids_readable = true;
    all.xids = parse_xids(*log);
  }
  for (const std::string& name : machine.list("/dev/nvidia-caps-imex-channels/")) {
    constexpr std::string_view stem = "channel";
    if (name.starts_with(stem)) {
      if (const auto channel = base::number<int>(std::string_view(name).substr(stem.size()))) {
        all.imex_channels.push_back(*channel);
      }
    }
  }
  all.ptrace_scope = base::number<int>(
      base::trim(machine.read("/proc/sys/kernel/yama/ptrace_scope").value_or("")));
  all.shm_bytes = machine.file_system_bytes("/dev/shm");
  all.shm_private = shm_is_private(machine.read("/proc/self/mountinfo").value_or(""));
  all.cdi = gather_cdi(machine);
  all.other_gpus = gather_other_gpus(machine);
  return all;
}

}  // namespace gpushm::inspect
