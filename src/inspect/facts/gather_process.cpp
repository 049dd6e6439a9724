// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "base/text/text.hpp"
#include "inspect/facts/gather_parts.hpp"
#include "inspect/facts/known_variables.hpp"

namespace gpushm::inspect {

namespace {

// Inodes of the initial namespaces (include/linux/proc_ns.h): PROC_IPC_INIT_INO and similar. No
// other namespace ever has these.
constexpr auto initial_namespaces =
    std::to_array<std::pair<std::string_view, std::uint64_t>>({{"ipc", 0xEFFFFFFFU},
                                                               {"uts", 0xEFFFFFFEU},
                                                               {"user", 0xEFFFFFFDU},
                                                               {"pid", 0xEFFFFFFCU},
                                                               {"cgroup", 0xEFFFFFFBU}});

/// The inode in "pid:[4026531836]"; 0 for other text.
std::uint64_t inode_of(const std::optional<std::string>& link) {
  if (!link) {
    return 0;
  }
  const std::size_t open = link->find('[');
  const std::size_t close = link->find(']');
  return open == std::string::npos || close == std::string::npos
             ? 0
             : base::number<std::uint64_t>(
                   std::string_view(*link).substr(open + 1, close - open - 1))
                   .value_or(0);
}

std::map<std::string, namespace_facts> gather_namespaces(system& machine, const std::string& root) {
  std::map<std::string, namespace_facts> entries;
  for (const char* kind : {"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"}) {
    entries[kind].id = inode_of(machine.link(root + "/ns/" + kind));
  }
  for (const auto& [kind, inode] : initial_namespaces) {
    namespace_facts& each = entries[std::string(kind)];
    if (each.id != 0) {
      each.host = each.id == inode;
    }
  }
  // These two are fixed only since Linux 6.18: a different number proves nothing.
  for (const auto& [kind, inode] : {std::pair{"net", 0xEFFFFFF9U}, std::pair{"mnt", 0xEFFFFFF8U}}) {
    if (entries[kind].id == inode) {
      entries[kind].host = true;
    }
  }
  // Process 1 is the host's only if /proc shows the host's PID namespace.
  if (inode_of(machine.link("/proc/self/ns/pid")) == 0xEFFFFFFCU) {
    for (const char* kind : {"mnt", "net"}) {
      const std::uint64_t of_init = inode_of(machine.link(std::string("/proc/1/ns/") + kind));
      if (of_init != 0 && entries[kind].id != 0) {
        entries[kind].host = entries[kind].id == of_init;
      }
    }
  }
  return entries;
}

/// The first run of 64 hexadecimal digits: the container id in an engine's paths.
std::string container_id(std::string_view text) {
  std::size_t run = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    run = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') ? run + 1 : 0;
    if (run == 64) {
      return std::string(text.substr(i - 63, 64));
    }
  }
  return {};
}

/// The UID after "pod" in a cgroup ("kubepods-besteffort-pod0a1b_….slice") or after
/// "/var/lib/kubelet/pods/" in a mount.
std::string pod_uid(std::string_view text) {
  for (const std::string_view before : {"/kubelet/pods/", "/pod", "-pod"}) {
    const std::size_t at = text.find(before);
    if (at == std::string_view::npos) {
      continue;
    }
    std::string uid(text.substr(at + before.size(), 36));
    for (char& each : uid) {
      each = each == '_' ? '-' : each;
    }
    if (uid.size() == 36 && uid.find_first_not_of("0123456789abcdef-") == std::string::npos &&
        uid[8] == '-') {
      return uid;
    }
  }
  return {};
}

std::string runtime_of(std::string_view text) {
  for (const auto& [sign, runtime] :
       {std::pair<std::string_view, std::string_view>{"crio", "cri-o"},
        {"cri-containerd", "containerd"},
        {"containerd", "containerd"},
        {"libpod", "podman"},
        {"/containers/storage/", "podman"},
        {"docker", "docker"}}) {
    if (text.find(sign) != std::string_view::npos) {
      return std::string(runtime);
    }
  }
  return {};
}

container_facts gather_container(system& machine,
                                 const std::string& root,
                                 const process_facts& process) {
  container_facts facts;
  std::string texts;
  for (const auto& [controllers, path] : process.cgroups) {
    texts += path + "\n";
  }
  const std::string mounts = machine.read(root + "/mountinfo").value_or(std::string());
  for (const std::string_view line : base::lines_of(mounts)) {
    // A file mounted from an engine's directory is more specific than a private cgroup.
    for (const std::string_view file : {" /etc/hostname ", " /etc/hosts ", " /etc/resolv.conf "}) {
      if (line.find(file) != std::string_view::npos) {
        texts += std::string(line) + "\n";
      }
    }
  }
  facts.id = container_id(texts);
  facts.pod_uid = pod_uid(texts);
  facts.runtime = runtime_of(texts);
  const bool itself = root == "/proc/self";
  // Machines are also built from container images: the marker alone does not prove a container.
  const bool confined = std::any_of(process.namespaces.begin(),
                                    process.namespaces.end(),
                                    [](const auto& each) { return each.second.host == false; });
  if (itself && confined && facts.runtime.empty()) {
    if (machine.status("/run/.containerenv")) {
      facts.runtime = "podman";
    } else if (machine.status("/.dockerenv")) {
      facts.runtime = "docker";
    }
  }
  const auto pid = process.namespaces.find("pid");
  const bool own_pids = pid != process.namespaces.end() && pid->second.host == false;
  if (facts.runtime.empty() && (!facts.id.empty() || !facts.pod_uid.empty() || own_pids)) {
    facts.runtime = "unknown";
  }
  if (process.variables.count("KUBERNETES_SERVICE_HOST") != 0) {
    const auto host = process.variables.find("HOSTNAME");
    facts.pod_name = host == process.variables.end() ? std::string() : host->second;
    if (itself) {
      facts.pod_namespace = std::string(base::trim(
          machine.read("/var/run/secrets/kubernetes.io/serviceaccount/namespace").value_or("")));
    }
    if (facts.runtime.empty()) {
      facts.runtime = "unknown";
    }
  }
  return facts;
}

std::map<std::string, std::string> gather_variables(system& machine,
                                                    const std::string& root,
                                                    bool itself) {
  std::map<std::string, std::string> texts;
  if (itself) {
    for (const char* name : known_variables) {
      if (auto value = machine.variable(name)) {
        texts[name] = std::move(*value);
      }
    }
    return texts;
  }
  const std::string environment = machine.read(root + "/environ").value_or(std::string());
  for (const std::string_view line : base::split(environment, std::string_view("\0", 1))) {
    const std::size_t equals = line.find('=');
    if (equals != std::string_view::npos) {
      texts[std::string(line.substr(0, equals))] = std::string(line.substr(equals + 1));
    }
  }
  return texts;
}

}  // namespace

process_facts gather_process(system& machine, const std::string& pid) {
  const std::string root = "/proc/" + pid;
  process_facts facts;
  const std::string status = machine.read(root + "/status").value_or(std::string());
  const auto status_field = [&](std::string_view name) { return base::field(status, name); };
  facts.name = status_field("Name").value_or("");
  facts.pid = base::number<std::int32_t>(status_field("Pid").value_or("")).value_or(0);
  for (const std::string_view each : base::split(status_field("NSpid").value_or(""), " \t")) {
    facts.nspid.push_back(base::number<std::int32_t>(each).value_or(0));
  }
  if (facts.nspid.empty() && facts.pid != 0) {
    facts.nspid.push_back(facts.pid);
  }
  // "real effective saved file system"
  const auto effective = [&](std::string_view name) {
    const auto ids = base::split(status_field(name).value_or(""), " \t");
    return ids.size() > 1 ? base::number<std::uint32_t>(ids[1]).value_or(0) : 0;
  };
  facts.uid = effective("Uid");
  facts.gid = effective("Gid");
  facts.capabilities = base::number<std::uint64_t>(status_field("CapEff").value_or(""), 16);
  facts.bounding_capabilities =
      base::number<std::uint64_t>(status_field("CapBnd").value_or(""), 16);
  if (const auto value = base::number<int>(status_field("NoNewPrivs").value_or(""))) {
    facts.no_new_privileges = *value != 0;
  }
  facts.seccomp = base::number<int>(status_field("Seccomp").value_or("")).value_or(-1);
  facts.namespaces = gather_namespaces(machine, root);
  const std::string cgroups = machine.read(root + "/cgroup").value_or(std::string());
  for (const std::string_view line : base::lines_of(cgroups)) {
    // "hierarchy:controllers:path"
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first != std::string_view::npos && second != std::string_view::npos) {
      facts.cgroups[std::string(line.substr(first + 1, second - first - 1))] =
          std::string(line.substr(second + 1));
    }
  }
  const std::string limits = machine.read(root + "/limits").value_or(std::string());
  for (const std::string_view line : base::lines_of(limits)) {
    // "Max open files            1024                 4096                 files"
    const auto words = base::split(line.size() > 26 ? line.substr(26) : std::string_view(), " ");
    const auto value = words.empty() ? std::nullopt : base::number<std::uint64_t>(words[0]);
    if (line.starts_with("Max ") && value) {
      facts.limits[std::string(base::trim(line.substr(0, 26)))] = *value;
    }
  }
  facts.variables = gather_variables(machine, root, pid == "self");
  facts.container = gather_container(machine, root, facts);
  return facts;
}

}  // namespace gpushm::inspect
