// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpushm::app::oci {

/// A directory or file of the host that the container sees.
struct bind_mount {
  std::string source;
  std::string destination;
  bool writable = false;
  /// Includes the mounts below it.
  bool recursive = true;
};

/// A character device that exists in the container and is allowed by its device cgroup.
struct device_node {
  std::string host;    ///< its path on the host
  std::string inside;  ///< where the container sees it; empty: at the same path
  [[nodiscard]] const std::string& destination() const { return inside.empty() ? host : inside; }
};

/// Maps user and group ids 0 to size-1 in the container to `first_host_id` and up on the host.
struct user_namespace {
  std::uint32_t first_host_id = 100'000;
  std::uint32_t size = 65'536;
};

/// The source of a container's namespace of one kind.
struct namespace_source {
  bool host = false;  ///< the runtime's own namespace
  std::string path;   ///< else an existing one: "/proc/1234/ns/pid"; empty: a new one
};

/// The program of a container and its environment. The rest is fixed: new UTS, mount and cgroup
/// namespaces, a read-only root with the host's /usr and libraries, an empty /tmp, no network in a
/// new network namespace, and no devices except /dev/null and similar ones.
struct container_options {
  /// The program's path as the container sees it, and its arguments.
  std::vector<std::string> argv;
  std::vector<std::pair<std::string, std::string>> env;
  uid_t uid = 1000;  ///< inside
  gid_t gid = 1000;  ///< inside
  namespace_source pid;
  namespace_source ipc;
  namespace_source net;
  std::vector<bind_mount> mounts;
  /// The host directory mounted at /dev/shm: the host's with its IPC namespace, or one for all
  /// containers of a pod. Empty: a private tmpfs.
  std::string shm;
  std::vector<device_node> device_nodes;
  std::optional<user_namespace> user_ns;
  /// Mount a read-only /sys, which only the NVIDIA driver needs.
  bool sysfs = false;
  /// If true: the capabilities of this process's bounding set, access to every device, no system
  /// call filter and no no-new-privileges; as in Kubernetes, only `device_nodes` exist. If false:
  /// no capabilities, access to `device_nodes` only, a filter, no-new-privileges.
  bool privileged = false;
};

}  // namespace gpushm::app::oci
