// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "apps/gpushm/k8s/rules.hpp"

namespace gpushm::k8s {

namespace {

std::string name_of(const manifest_node& container) {
  const std::string name = container["name"].text();
  return name.empty() ? "without a name" : name;
}

/// The container's setting, else its pod's.
manifest_node setting(const workload& pod, const manifest_node& container, std::string_view key) {
  return container["securityContext"][key].or_else(pod.spec["securityContext"][key]);
}

/// Whether a value that is not as it should be is the manifest's: a setting that is missing in a
/// part of a pod may be added by the operator.
bool may_judge(const workload& pod, const manifest_node& node) {
  return node || !pod.partial;
}

/// The place to report for a missing setting.
manifest_node place_in(const manifest_node& container) {
  return container["securityContext"].or_else(container["name"]).or_else(container);
}

void privileged(const workload& pod, const manifest_node& container, report& out) {
  const manifest_node node = container["securityContext"]["privileged"];
  if (node.is_true()) {
    out.add(pod,
            node,
            "privileged",
            "Privileges only help because they open every device node; an importer needs only the "
            "exporter's GPU. Request that GPU by a shared ResourceClaim or by that GPU's resource",
            {"privileged: false"},
            name_of(container));
  }
}

std::string why_capability(std::string_view name) {
  if (name == "IPC_LOCK") {
    return "IPC_LOCK is not needed: CUDA registers memory with a locked-memory limit of 0";
  }
  if (name == "SYS_PTRACE") {
    return "SYS_PTRACE is not needed: descriptors are sent over a socket, not copied from another "
           "process";
  }
  if (name == "SYS_ADMIN") {
    return "SYS_ADMIN is nearly root, and sharing GPU memory needs no capability at all";
  }
  return fmt::format("Sharing GPU memory needs no capability, including {}", name);
}

void capability(const workload& pod, const manifest_node& container, report& out) {
  for (const manifest_node& each : container["securityContext"]["capabilities"]["add"].elements()) {
    const std::string name = each.text();
    if (name != "NET_BIND_SERVICE") {
      out.add(pod,
              each,
              "capability",
              why_capability(name.starts_with("CAP_") ? name.substr(4) : name),
              {"capabilities:", "  drop: [\"ALL\"]"},
              name_of(container));
    }
  }
}

void capabilities_kept(const workload& pod, const manifest_node& container, report& out) {
  const manifest_node drop = container["securityContext"]["capabilities"]["drop"];
  const auto dropped = drop.elements();
  const bool drops_all = std::any_of(dropped.begin(), dropped.end(), [](const manifest_node& each) {
    return each.text() == "ALL";
  });
  if (!drops_all && may_judge(pod, drop)) {
    out.add(pod,
            drop.or_else(place_in(container)),
            "capabilities-kept",
            "Containers keep a dozen capabilities unless they drop them; sharing GPU memory needs "
            "none, and the restricted standard requires all to be dropped",
            {"securityContext:", "  capabilities:", "    drop: [\"ALL\"]"},
            name_of(container));
  }
}

void seccomp(const workload& pod, const manifest_node& container, report& out) {
  const manifest_node profile = setting(pod, container, "seccompProfile");
  const std::string type = profile["type"].text();
  if (type == "Unconfined") {
    out.add(pod,
            profile["type"],
            "seccomp-unconfined",
            "The runtime's default profile allows everything that sharing GPU memory needs",
            {"seccompProfile:", "  type: RuntimeDefault"},
            name_of(container));
  } else if (type != "RuntimeDefault" && type != "Localhost" && may_judge(pod, profile)) {
    out.add(pod,
            profile.or_else(place_in(container)),
            "seccomp-missing",
            "Without a profile the container is unconfined on most nodes; the restricted standard "
            "requires one, and the runtime's default is enough for sharing GPU memory",
            {"securityContext:", "  seccompProfile:", "    type: RuntimeDefault"},
            name_of(container));
  }
}

void privilege_escalation(const workload& pod, const manifest_node& container, report& out) {
  const manifest_node node = container["securityContext"]["allowPrivilegeEscalation"];
  if (node.boolean() != false && may_judge(pod, node)) {
    out.add(
        pod,
        node.or_else(place_in(container)),
        "privilege-escalation",
        "Sharing GPU memory works with no-new-privileges, which the restricted standard requires",
        {"securityContext:", "  allowPrivilegeEscalation: false"},
        name_of(container));
  }
}

void run_as_root(const workload& pod, const manifest_node& container, report& out) {
  const manifest_node user = setting(pod, container, "runAsUser");
  const manifest_node not_root = setting(pod, container, "runAsNonRoot");
  if (user.text() == "0") {
    out.add(pod,
            user,
            "run-as-root",
            "Any user can share GPU memory: device nodes and the domain's socket are open to every "
            "user in the container",
            {"runAsNonRoot: true", "runAsUser: 1000"},
            name_of(container));
  } else if (!not_root.is_true() && may_judge(pod, not_root)) {
    out.add(pod,
            not_root.or_else(place_in(container)),
            "run-as-root",
            "An image may run as root unless that is forbidden; any user can share GPU memory, and "
            "the restricted standard requires a user other than root",
            {"securityContext:", "  runAsNonRoot: true", "  runAsUser: 1000"},
            name_of(container));
  }
}

void visible_devices(const workload& pod, const manifest_node& container, report& out) {
  for (const manifest_node& variable : container["env"].elements()) {
    const std::string name = variable["name"].text();
    const std::string value = variable["value"].text();
    if (name == "NVIDIA_VISIBLE_DEVICES" && !value.empty() && value != "void" && value != "none") {
      out.add(pod,
              variable["value"],
              "visible-devices",
              fmt::format("NVIDIA_VISIBLE_DEVICES={} selects GPUs without the scheduler, which may "
                          "allocate them to other pods at the same time, and has no effect unless "
                          "the container runtime is NVIDIA's. Request a GPU by a resource or a "
                          "claim instead",
                          value),
              claim_lines(),
              name_of(container));
    } else if (name == "CUDA_VISIBLE_DEVICES" && !value.empty()) {
      out.add(
          pod,
          variable["value"],
          "visible-devices",
          fmt::format("CUDA_VISIBLE_DEVICES={} indexes the container's GPUs from 0, and is not a "
                      "boundary: memory of a GPU that it hides can still be imported. The "
                      "resource or claim already selects the GPU",
                      value),
          {},
          name_of(container));
    }
  }
}

}  // namespace

std::span<const container_rule> container_rules() {
  static constexpr auto rules =
      std::to_array<container_rule>({{"privileged", privileged},
                                     {"capability", capability},
                                     {"capabilities-kept", capabilities_kept},
                                     {"seccomp", seccomp},
                                     {"privilege-escalation", privilege_escalation},
                                     {"run-as-root", run_as_root},
                                     {"visible-devices", visible_devices}});
  return rules;
}

}  // namespace gpushm::k8s
