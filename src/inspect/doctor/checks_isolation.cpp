// SPDX-License-Identifier: Apache-2.0
#include "base/size_text.hpp"
#include "inspect/doctor/rules.hpp"

namespace gpushm::inspect::rules {

namespace {

// Bits of a capability set (linux/capability.h).
constexpr unsigned int cap_sys_ptrace = 19;
constexpr unsigned int cap_sys_admin = 21;

bool has(const std::optional<std::uint64_t>& set, unsigned int capability) {
  return set && ((*set >> capability) & 1U) != 0;
}

std::optional<bool> is_host(const process_facts& process, const char* kind) {
  const auto found = process.namespaces.find(kind);
  return found == process.namespaces.end() ? std::nullopt : found->second.host;
}

}  // namespace

check container(const facts& all) {
  check made;
  const container_facts& inside = all.self.container;
  if (inside.runtime.empty()) {
    made.result = verdict::ok;
    made.seen = "no container";
    return made;
  }
  made.result = verdict::ok;
  made.seen = inside.runtime == "unknown" ? "a container of an unidentified engine"
                                          : "a container of " + inside.runtime;
  if (!inside.id.empty()) {
    made.seen += ", id " + inside.id.substr(0, 12);
  }
  if (!inside.pod_name.empty()) {
    made.seen += ", pod " + (inside.pod_namespace.empty() ? "" : inside.pod_namespace + "/") +
                 inside.pod_name;
  } else if (!inside.pod_uid.empty()) {
    made.seen += ", pod uid " + inside.pod_uid;
  }
  if (all.gvisor) {
    made.result = verdict::warning;
    made.why =
        "gVisor forwards only the driver calls that it supports; sharing between sandboxes was not "
        "measured by gpushm";
    made.remedy = "gpushm doctor without --no-selftest shows what works; otherwise use runc";
  }
  return made;
}

check namespaces(const facts& all) {
  check made;
  for (const auto& [kind, each] : all.self.namespaces) {
    if (each.id != 0) {
      made.seen += (made.seen.empty() ? "" : ", ") + kind + " " +
                   (!each.host   ? "unknown"
                    : *each.host ? "the host's"
                                 : "private");
    }
  }
  if (made.seen.empty()) {
    made.seen = unknown("the namespaces are not visible");
    return made;
  }
  made.seen += "; PID";
  for (const int each : all.self.nspid) {
    made.seen += " " + std::to_string(each);
  }
  made.result = verdict::ok;
  return made;
}

check pid_namespace(const facts& all) {
  check made;
  const auto host = is_host(all.self, "pid");
  const int own = all.self.nspid.empty() ? all.self.pid : all.self.nspid.back();
  if (!host) {
    made.seen = unknown("the PID namespace is not visible") + "; this process is PID " +
                std::to_string(own);
    return made;
  }
  if (*host) {
    made.result = verdict::ok;
    made.seen = "the host's; this process is PID " + std::to_string(own);
    return made;
  }
  made.result = verdict::note;
  made.seen = "private; this process is PID " + std::to_string(own) + " in it";
  made.why =
      "a legacy handle contains its exporter's PID; if it equals the importer's, the driver "
      "reports "
      "\"invalid device context\", and every container's first process is PID 1";
  made.remedy =
      "share through gpushm, which corrects the handle; hostPID and shareProcessNamespace are not "
      "needed";
  return made;
}

check user_namespace(const facts& all) {
  check made;
  const auto host = is_host(all.self, "user");
  if (!host) {
    made.seen = unknown("the user namespace is not visible");
  } else if (*host) {
    made.result = verdict::ok;
    made.seen = "the host's";
  } else {
    made.result = verdict::warning;
    made.seen = "private";
    made.why =
        "a broker outside may see uid 65534 and pid 0 for this process, which is then "
        "unidentified: "
        "only the creator's own connection may remove its segments";
    made.remedy = "nothing, if each domain has one tenant; otherwise use one domain per tenant";
  }
  return made;
}

check host_namespaces(const facts& all) {
  check made;
  if (!in_container(all.self)) {
    made.seen = "no container";
    return made;
  }
  std::string shared;
  for (const auto& [kind, line] :
       {std::pair<const char*, const char*>{"pid", "hostPID: true"}, {"ipc", "hostIPC: true"}}) {
    if (is_host(all.self, kind) == true) {
      shared += (shared.empty() ? "" : " and ") + std::string(line);
    }
  }
  if (shared.empty()) {
    made.result = verdict::ok;
    made.seen = "PID and IPC namespaces are the container's own";
    return made;
  }
  made.result = verdict::warning;
  made.seen = "this container has " + shared;
  made.why = "sharing GPU memory does not need it, and it exposes the host to this container";
  made.remedy = "delete " + shared + " from the pod, and share through gpushm";
  return made;
}

check privileges(const facts& all) {
  check made;
  made.seen = "uid " + std::to_string(all.self.uid);
  if (all.self.capabilities) {
    made.seen += *all.self.capabilities == 0 ? ", no capability" : ", with capabilities";
  }
  if (all.self.no_new_privileges) {
    made.seen += *all.self.no_new_privileges ? ", no new privileges" : "";
  }
  if (all.self.seccomp >= 0) {
    made.seen += all.self.seccomp == 2 ? ", seccomp filter" : ", no seccomp filter";
  }
  if (in_container(all.self) && has(all.self.capabilities, cap_sys_admin)) {
    made.result = verdict::warning;
    made.why =
        "\"privileged\" helps with GPUs only because it lets the container open every GPU's node; "
        "requesting the right GPU in its resources is enough";
    made.remedy = "delete privileged: true, and give both sides the same GPU";
    return made;
  }
  made.result = verdict::ok;
  return made;
}

check ptrace(const facts& all) {
  check made;
  if (!all.ptrace_scope) {
    made.seen = "no Yama";
    return made;
  }
  made.seen = "Yama ptrace_scope is " + std::to_string(*all.ptrace_scope);
  if (*all.ptrace_scope == 0 || has(all.self.capabilities, cap_sys_ptrace)) {
    made.result = verdict::ok;
    return made;
  }
  made.result = verdict::note;
  made.why =
      "PyTorch's expandable segments and other libraries copy descriptors with pidfd_getfd, which "
      "then fails with EPERM except between parent and child; gpushm does not use it";
  made.remedy = "share through gpushm; or on the host: sysctl kernel.yama.ptrace_scope=0";
  return made;
}

check shm(const facts& all) {
  check made;
  if (all.shm_bytes == 0) {
    made.seen = "no /dev/shm";
    return made;
  }
  made.seen = base::size_text(all.shm_bytes) + (all.shm_private ? ", this container's own" : "");
  constexpr std::uint64_t default_of_engines = 64U << 20U;
  if (all.shm_bytes > default_of_engines) {
    made.result = verdict::ok;
    return made;
  }
  made.result = verdict::note;
  made.why =
      "data loaders and NCCL fail with \"Bus error\" or \"No space left on device\" when it is "
      "full; gpushm does not use it";
  made.remedy = "mount an emptyDir with medium: Memory at /dev/shm, or --shm-size=8g";
  return made;
}

check limits(const facts& all) {
  check made;
  const auto found = all.self.limits.find("Max open files");
  if (found == all.self.limits.end()) {
    made.seen = "no limit on open files";
    made.result = verdict::ok;
    return made;
  }
  made.seen = std::to_string(found->second) + " open files";
  constexpr std::uint64_t enough = 1024;
  if (found->second >= enough) {
    made.result = verdict::ok;
    return made;
  }
  made.result = verdict::warning;
  made.why =
      "each chunk of memory uses a descriptor while it is transferred: 253 at a time here, all of "
      "them in the broker (a 1 GiB tensor of PyTorch's expandable segments has 52)";
  made.remedy = "ulimit -n 65536, LimitNOFILE=65536, or the engine's default ulimit";
  return made;
}

check broker(const facts& all) {
  check made;
  if (!all.broker) {
    made.seen = unknown("no broker was contacted");
    return made;
  }
  if (all.broker->reachable) {
    made.result = verdict::ok;
    made.seen = "domain \"" + all.broker->domain + "\" at " + all.broker->socket + ", protocol " +
                std::to_string(all.broker->protocol) + ", " + std::to_string(all.broker->segments) +
                " segments";
    if (!all.broker->fence.empty()) {
      made.seen += ", fence " + all.broker->fence;
    }
    if (all.broker->fence == "none") {
      made.result = verdict::note;
      made.why =
          "the broker cannot detect when the writes of a dead process have stopped (no pidfd, or "
          "MPS): it waits for two seconds instead, which proves nothing";
      made.remedy =
          "use Linux 5.3 or newer, allow pidfd_open, and do not use MPS for processes that share";
    }
    return made;
  }
  made.result = verdict::warning;
  made.seen = all.broker->problem;
  made.why =
      "without a broker, memory can be shared only through tickets and files (gpushm export)";
  made.remedy = in_container(all.self)
                    ? "mount the domain's directory at /run/gpushm/d/<domain>: --device "
                      "gpushm.dev/share=<domain>, or -v"
                    : "gpushm serve";
  return made;
}

}  // namespace gpushm::inspect::rules
