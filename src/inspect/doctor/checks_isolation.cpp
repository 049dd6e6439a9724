// SPDX-License-Identifier: Apache-2.0
#include "base/text/size_text.hpp"
#include "gpu/driver/connections.hpp"
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

check container(const facts& facts) {
  const container_facts& inside = facts.self.container;
  if (inside.runtime.empty()) {
    return finding(verdict::ok, "no container");
  }
  std::string seen = inside.runtime == "unknown" ? "a container of an unidentified engine"
                                                 : "a container of " + inside.runtime;
  if (!inside.id.empty()) {
    seen += ", id " + inside.id.substr(0, 12);
  }
  if (!inside.pod_name.empty()) {
    seen += ", pod " + (inside.pod_namespace.empty() ? "" : inside.pod_namespace + "/") +
            inside.pod_name;
  } else if (!inside.pod_uid.empty()) {
    seen += ", pod uid " + inside.pod_uid;
  }
  if (!facts.gvisor) {
    return finding(verdict::ok, seen);
  }
  return finding(
      verdict::warning,
      seen,
      "gVisor forwards only the driver calls that it supports; sharing between sandboxes was not "
      "measured by gpushm",
      "gpushm doctor without --no-selftest shows what works; otherwise use runc");
}

check namespaces(const facts& facts) {
  std::string seen;
  for (const auto& [kind, each] : facts.self.namespaces) {
    if (each.id != 0) {
      seen += (seen.empty() ? "" : ", ") + kind + " " +
              (!each.host   ? unknown("the host's is not visible")
               : *each.host ? "the host's"
                            : "private");
    }
  }
  if (seen.empty()) {
    return finding(verdict::not_applicable, unknown("the namespaces are not visible"));
  }
  seen += "; PID";
  for (const int each : facts.self.nspid) {
    seen += " " + std::to_string(each);
  }
  return finding(verdict::ok, seen);
}

check pid_namespace(const facts& facts) {
  const auto host = is_host(facts.self, "pid");
  const int own = facts.self.nspid.empty() ? facts.self.pid : facts.self.nspid.back();
  const std::string pid = "; this process is PID " + std::to_string(own);
  if (!host) {
    return finding(verdict::not_applicable, unknown("the PID namespace is not visible") + pid);
  }
  if (*host) {
    return finding(verdict::ok, "the host's" + pid);
  }
  return finding(
      verdict::note,
      "private" + pid + " in it",
      "a legacy handle contains its exporter's PID; if it equals the importer's, the driver "
      "reports \"invalid device context\", and every container's first process is PID 1",
      "share through gpushm, which corrects the handle; hostPID and shareProcessNamespace are not "
      "needed");
}

check user_namespace(const facts& facts) {
  const auto host = is_host(facts.self, "user");
  if (!host) {
    return finding(verdict::not_applicable, unknown("the user namespace is not visible"));
  }
  if (*host) {
    return finding(verdict::ok, "the host's");
  }
  return finding(verdict::warning,
                 "private",
                 "a broker outside may see uid 65534 and pid 0 for this process, which is then "
                 "unidentified: only the creator's own connection may remove its segments",
                 "nothing, if each domain has one tenant; otherwise use one domain per tenant");
}

check host_namespaces(const facts& facts) {
  if (!in_container(facts.self)) {
    return finding(verdict::not_applicable, "no container");
  }
  std::string shared;
  for (const auto& [kind, line] :
       {std::pair<const char*, const char*>{"pid", "hostPID: true"}, {"ipc", "hostIPC: true"}}) {
    if (is_host(facts.self, kind) == true) {
      shared += (shared.empty() ? "" : " and ") + std::string(line);
    }
  }
  if (shared.empty()) {
    return finding(verdict::ok, "PID and IPC namespaces are the container's own");
  }
  return finding(verdict::warning,
                 "this container has " + shared,
                 "sharing GPU memory does not need it, and it exposes the host to this container",
                 "delete " + shared + " from the pod, and share through gpushm");
}

check privileges(const facts& facts) {
  std::string seen = "uid " + std::to_string(facts.self.uid);
  if (facts.self.capabilities) {
    seen += *facts.self.capabilities == 0 ? ", no capability" : ", with capabilities";
  }
  if (facts.self.no_new_privileges) {
    seen += *facts.self.no_new_privileges ? ", no new privileges" : "";
  }
  if (facts.self.seccomp >= 0) {
    seen += facts.self.seccomp == 2 ? ", seccomp filter" : ", no seccomp filter";
  }
  if (in_container(facts.self) && has(facts.self.capabilities, cap_sys_admin)) {
    return finding(
        verdict::warning,
        seen,
        "\"privileged\" helps with GPUs only because it lets the container open every GPU's node; "
        "requesting the right GPU in its resources is enough",
        "delete privileged: true, and give both sides the same GPU");
  }
  return finding(verdict::ok, seen);
}

check ptrace(const facts& facts) {
  if (!facts.ptrace_scope) {
    return finding(verdict::not_applicable, "no Yama");
  }
  const std::string scope = "Yama ptrace_scope is " + std::to_string(*facts.ptrace_scope);
  if (*facts.ptrace_scope == 0 || has(facts.self.capabilities, cap_sys_ptrace)) {
    return finding(verdict::ok, scope);
  }
  return finding(
      verdict::note,
      scope,
      "PyTorch's expandable segments and other libraries copy descriptors with pidfd_getfd, which "
      "then fails with EPERM except between parent and child; gpushm does not use it",
      "share through gpushm; or on the host: sysctl kernel.yama.ptrace_scope=0");
}

check shm(const facts& facts) {
  if (facts.shm_bytes == 0) {
    return finding(verdict::not_applicable, "no /dev/shm");
  }
  const std::string size =
      base::size_text(facts.shm_bytes) + (facts.shm_private ? ", this container's own" : "");
  constexpr std::uint64_t default_of_engines = 64U << 20U;
  if (facts.shm_bytes > default_of_engines) {
    return finding(verdict::ok, size);
  }
  return finding(
      verdict::note,
      size,
      "data loaders and NCCL fail with \"Bus error\" or \"No space left on device\" when it is "
      "full; gpushm does not use it",
      "mount an emptyDir with medium: Memory at /dev/shm, or --shm-size=8g");
}

check limits(const facts& facts) {
  if (facts.self.limits.empty()) {
    return finding(verdict::not_applicable, unknown("this process's limits are not visible"));
  }
  const auto entry = facts.self.limits.find("Max open files");
  if (entry == facts.self.limits.end()) {
    return finding(verdict::ok, "no limit on open files");
  }
  const std::string limit = std::to_string(entry->second) + " open files";
  constexpr std::uint64_t enough = 1024;
  if (entry->second >= enough) {
    return finding(verdict::ok, limit);
  }
  return finding(
      verdict::warning,
      limit,
      "each chunk of memory uses a descriptor while it is transferred: 253 at a time here, all of "
      "them in the broker (a 1 GiB tensor of PyTorch's expandable segments has 52)",
      "ulimit -n 65536, LimitNOFILE=65536, or the engine's default ulimit");
}

check broker(const facts& facts) {
  if (!facts.broker) {
    return finding(verdict::not_applicable, unknown("no broker was contacted"));
  }
  if (!facts.broker->reachable) {
    return finding(
        verdict::warning,
        facts.broker->problem,
        "without a broker, memory can be shared only through tickets and files (gpushm export)",
        in_container(facts.self)
            ? "mount the domain's directory at /run/gpushm/d/<domain>: --device "
              "gpushm.dev/share=<domain>, or -v"
            : "gpushm serve");
  }
  std::string seen = "domain \"" + facts.broker->domain + "\" at " + facts.broker->socket +
                     ", protocol " + std::to_string(facts.broker->protocol) + ", " +
                     std::to_string(facts.broker->segments) + " segments";
  if (!facts.broker->fence.empty()) {
    seen += ", fence " + facts.broker->fence;
  }
  if (facts.broker->fence != "none") {
    return finding(verdict::ok, seen);
  }
  return finding(
      verdict::note,
      seen,
      "the broker cannot detect when the writes of a dead process have stopped (no pidfd, or "
      "MPS): it waits for a fixed time instead (gpushm serve --fence-delay), which proves nothing",
      "use Linux 5.3 or newer, allow pidfd_open, and do not use MPS for processes that share");
}

check waiting_streams(const facts& facts) {
  constexpr const char* variable = driver::connections_variable;
  const auto set = facts.self.variables.find(variable);
  const bool is_set = set != facts.self.variables.end();
  const std::string seen =
      is_set ? fmt::format("{}={}", variable, set->second) : fmt::format("{} is not set", variable);
  const std::uint32_t connections = driver::connections_in(is_set ? set->second : std::string());
  const std::uint32_t limit = driver::waiting_streams_limit(connections);
  if (limit == 0) {
    return finding(
        verdict::warning,
        seen + ": no stream can wait for a timeline",
        "with one connection a stream that waits stops all others of its process, so calls that "
        "would enqueue a wait wait on the CPU instead",
        fmt::format("unset {0}, or export {0}=8, for processes whose streams wait for timelines or "
                    "channels",
                    variable));
  }
  return finding(verdict::ok,
                 fmt::format("{}, {} connections: at most {} of a process's streams can wait for "
                             "timelines at a time",
                             seen,
                             connections,
                             limit));
}

}  // namespace gpushm::inspect::rules
