// SPDX-License-Identifier: Apache-2.0
#include "base/text/text.hpp"
#include "gpu/driver/device_text.hpp"
#include "inspect/facts/gather_parts.hpp"

namespace gpushm::inspect {

namespace {

/// "NVRM: Xid (PCI:0000:18:00): 79, pid=1234, GPU has fallen off the bus."
std::vector<xid_facts> parse_xids(std::string_view log) {
  std::vector<xid_facts> facts;
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
    facts.push_back(std::move(each));
  }
  return facts;
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
  facts facts;
  facts.device_majors = gather_majors(machine);
  facts.nodes = gather_nodes(machine, facts.device_majors);
  facts.driver = probe();
  facts.kernel = std::string(base::trim(machine.read("/proc/sys/kernel/osrelease").value_or("")));
  facts.gvisor = base::trim(machine.read("/proc/version").value_or("")) == gvisor_version;
  gather_platform(machine, facts);
  facts.selinux = gather_selinux(machine, facts.nodes);
  facts.holders = machine.holders();
  facts.self = gather_process(machine, "self");
  if (facts.gvisor) {
    facts.self.container.runtime = "gvisor";
  }
  if (options.peer_pid != 0) {
    facts.peer = gather_process(machine, std::to_string(options.peer_pid));
  }
  gather_software(machine, facts);
  const auto pipe = facts.self.variables.find("CUDA_MPS_PIPE_DIRECTORY");
  facts.mps = machine
                  .status((pipe == facts.self.variables.end() ? "/tmp/nvidia-mps" : pipe->second) +
                          "/control")
                  .has_value();
  facts.gpus = gather_gpus(machine, facts);
  facts.pairs = gather_pairs(facts);
  if (const auto log = machine.read("/dev/kmsg")) {
    facts.xids_readable = true;
    facts.xids = parse_xids(*log);
  }
  for (const std::string& name : machine.list("/dev/nvidia-caps-imex-channels/")) {
    constexpr std::string_view stem = "channel";
    if (name.starts_with(stem)) {
      if (const auto channel = base::number<int>(std::string_view(name).substr(stem.size()))) {
        facts.imex_channels.push_back(*channel);
      }
    }
  }
  facts.ptrace_scope = base::number<int>(
      base::trim(machine.read("/proc/sys/kernel/yama/ptrace_scope").value_or("")));
  facts.shm_bytes = machine.file_system_bytes("/dev/shm");
  facts.shm_private = shm_is_private(machine.read("/proc/self/mountinfo").value_or(""));
  facts.cdi = gather_cdi(machine);
  facts.other_gpus = gather_other_gpus(machine);
  return facts;
}

}  // namespace gpushm::inspect
