// SPDX-License-Identifier: Apache-2.0
#pragma once

// Doctor's rules. Each depends only on the facts and always returns a verdict. Pure, thread-safe.

#include <fmt/core.h>

#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

#include "inspect/doctor/check.hpp"

namespace gpushm::inspect::rules {

// checks_platform.cpp
[[nodiscard]] check platform(const facts& facts);
[[nodiscard]] check selinux(const facts& facts);

// checks_cdi.cpp
[[nodiscard]] check cdi(const facts& facts);

// checks_driver.cpp
[[nodiscard]] check libcuda(const facts& facts);
[[nodiscard]] check driver_match(const facts& facts);
[[nodiscard]] check cuda_compat(const facts& facts);
[[nodiscard]] check nvml(const facts& facts);
[[nodiscard]] check cuinit(const facts& facts);

// checks_devices.cpp
[[nodiscard]] check device_nodes(const facts& facts);
[[nodiscard]] check gpu_nodes(const facts& facts);
[[nodiscard]] check uvm_major(const facts& facts);
[[nodiscard]] check visible_devices(const facts& facts);

// checks_gpus.cpp
[[nodiscard]] check gpus(const facts& facts);
[[nodiscard]] check mig(const facts& facts);
[[nodiscard]] check compute_mode(const facts& facts);
[[nodiscard]] check mps(const facts& facts);
[[nodiscard]] check virtualization(const facts& facts);
[[nodiscard]] check persistence(const facts& facts);
[[nodiscard]] check xid(const facts& facts);
[[nodiscard]] check vmm_support(const facts& facts);
[[nodiscard]] check rdma(const facts& facts);
[[nodiscard]] check peer_access(const facts& facts);
[[nodiscard]] check imex(const facts& facts);

// checks_other_gpus.cpp
[[nodiscard]] check other_gpus(const facts& facts);

// checks_isolation.cpp
[[nodiscard]] check container(const facts& facts);
[[nodiscard]] check namespaces(const facts& facts);
[[nodiscard]] check pid_namespace(const facts& facts);
[[nodiscard]] check user_namespace(const facts& facts);
[[nodiscard]] check host_namespaces(const facts& facts);
[[nodiscard]] check privileges(const facts& facts);
[[nodiscard]] check ptrace(const facts& facts);
[[nodiscard]] check shm(const facts& facts);
[[nodiscard]] check limits(const facts& facts);
[[nodiscard]] check broker(const facts& facts);
[[nodiscard]] check waiting_streams(const facts& facts);

// Helpers of several rules.

/// "python3 (PID 99), gpushmd (PID 7) and 3 more": the processes that have NVIDIA's nodes open.
[[nodiscard]] std::string holders_text(const facts& facts);
/// How to stop what has GPUs open, which a reset and the removal of a module need.
[[nodiscard]] std::string release_gpus(const facts& facts);
/// The remedy of a check on a machine without NVIDIA's usual driver; empty: the check is a note.
/// Precondition: `platform` is not empty.
[[nodiscard]] std::string platform_remedy(const facts& facts, std::string_view id);

/// True if any part of NVIDIA's driver exists; without it no GPU check can fail.
[[nodiscard]] inline bool driver_expected(const facts& facts) {
  if (!facts.module_version.empty() || !facts.gpus.empty() || !facts.device_majors.empty()) {
    return true;
  }
  for (const device_node_facts& node : facts.nodes) {
    if (node.status) {
      return true;
    }
  }
  return false;
}

[[nodiscard]] inline bool in_container(const process_facts& process) {
  return !process.container.runtime.empty();
}

/// A GPU's short name in messages: the start of its UUID, or its PCI address.
[[nodiscard]] inline std::string short_name(const gpu_facts& gpu) {
  return gpu.uuid.empty() ? gpu.pci_address : gpu.uuid.substr(0, 12);
}

/// The writer of a document that is not usable, and how to make it write again.
[[nodiscard]] std::string cdi_remedy(const facts& facts, const cdi_facts& document);

/// The only spelling of an unknown value.
[[nodiscard]] inline std::string unknown(const std::string& reason) {
  return fmt::format("unknown ({})", reason);
}

/// Why a device node cannot be opened.
[[nodiscard]] inline std::string why_not_opened(int number) {
  switch (number) {
    case ENOENT:
      return "is missing";
    case EPERM:
      return "is denied by the device cgroup (EPERM)";
    case EACCES:
      return "is denied by its owner and mode (EACCES)";
    case ENXIO:
    case ENODEV:
      return "has no driver (ENXIO)";
    default:
      return fmt::format("cannot be opened (errno {})", number);
  }
}

/// "/dev/nvidiactl is missing".
[[nodiscard]] inline std::string not_opened(const device_node_facts& node) {
  return fmt::format("{} {}", node.path, why_not_opened(node.open_error));
}

}  // namespace gpushm::inspect::rules
