// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <array>

#include "apps/gpushm/k8s/rules.hpp"
#include "apps/gpushm/k8s/sharing_side.hpp"

namespace gpushm::k8s {

namespace {

void host_pid(const workload& pod, report& out) {
  if (pod.spec["hostPID"].is_true()) {
    out.add(
        pod,
        pod.spec["hostPID"],
        "host-pid",
        "Sharing GPU memory needs no host PID namespace: the driver refuses a legacy IPC handle "
        "only when the exporter's PID equals the importer's own, and descriptors contain no PID; "
        "gpushm shares descriptors, and rewrites the PID in legacy handles",
        {"hostPID: false"});
  }
}

void host_ipc(const workload& pod, report& out) {
  if (pod.spec["hostIPC"].is_true()) {
    out.add(
        pod,
        pod.spec["hostIPC"],
        "host-ipc",
        "Sharing GPU memory needs no host IPC namespace: memory descriptors and legacy handles "
        "work between private ones; gpushm.dev/ipc in the limits of both pods does the same for "
        "unchanged programs, including CUDA's IPC events",
        {"hostIPC: false"});
  }
}

void host_network(const workload& pod, report& out) {
  if (pod.spec["hostNetwork"].is_true()) {
    out.add(pod,
            pod.spec["hostNetwork"],
            "host-network",
            "Sharing GPU memory needs no host network: pods of a node connect to a Unix socket "
            "that is mounted",
            {"hostNetwork: false"});
  }
}

void shared_processes(const workload& pod, report& out) {
  if (pod.spec["shareProcessNamespace"].is_true()) {
    out.add(pod,
            pod.spec["shareProcessNamespace"],
            "share-process-namespace",
            "Containers of a pod need not see each other's processes to share GPU memory: this "
            "only makes their PIDs differ, which the driver compares",
            {"shareProcessNamespace: false"});
  }
}

struct path_row {
  std::string_view start;
  std::string_view why;
};

std::string_view why_not(std::string_view path) {
  constexpr auto rows = std::to_array<path_row>(
      {{"/dev/shm",
        "The host's /dev/shm is open to every pod that mounts it, and "
        "sharing GPU memory needs none"},
       {"/dev",
        "GPUs come from a resource or a claim, which allow their device "
        "nodes; a mounted node is not "
        "allowed by the device cgroup"},
       {"/run/gpushm",
        "A domain's directory comes with gpushm.dev/share or a claim: mounted by hand it is open "
        "to any pod that mounts it, and may belong to another claim"},
       {"/var/run/gpushm",
        "A domain's directory comes with gpushm.dev/share or a claim: mounted by hand it is open "
        "to any pod that mounts it, and may belong to another claim"}});
  for (const path_row& each : rows) {
    const bool below = path.starts_with(each.start) &&
                       (path.size() == each.start.size() || path[each.start.size()] == '/');
    if (below) {
      return each.why;
    }
  }
  return "A host directory that carries handles from pod to pod is open to every pod that mounts "
         "it, and its content outlives its writer; the broker's socket carries descriptors to the "
         "right pods only";
}

void host_path(const workload& pod, report& out) {
  for (const manifest_node& volume : pod.spec["volumes"].elements()) {
    const manifest_node source = volume["hostPath"];
    if (source && may_carry_handles(source)) {
      out.add(pod,
              source,
              "host-path",
              fmt::format("{}. The restricted standard forbids hostPath",
                          why_not(source["path"].text())),
              {"resources:", "  limits:", "    gpushm.dev/share: 1"});
    }
  }
}

}  // namespace

std::span<const pod_rule> pod_rules() {
  static constexpr auto rules =
      std::to_array<pod_rule>({{"host-pid", host_pid},
                               {"host-ipc", host_ipc},
                               {"host-network", host_network},
                               {"share-process-namespace", shared_processes},
                               {"host-path", host_path}});
  return rules;
}

}  // namespace gpushm::k8s
