// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpushm_testing {

/// A directory or file of the host that the container sees.
struct bind_mount {
  std::string source;
  std::string destination;
  bool writable = false;
  /// With what is mounted below it.
  bool recursive = true;
};

/// Container ids 0 to size-1 are `first_host_id` and up on the host, for users and groups alike.
struct user_namespace {
  std::uint32_t first_host_id = 100'000;
  std::uint32_t size = 65'536;
};

/// What runs in a container and what it sees. The rest is fixed: private PID, IPC, network, UTS,
/// mount and cgroup namespaces, no capability, no-new-privileges, a system call filter, a read-only
/// root with the host's /usr and libraries, an empty /tmp and /dev/shm, no network, and no device
/// but /dev/null and its like.
struct container_options {
  /// The program's path as the container sees it, and its arguments.
  std::vector<std::string> argv;
  std::vector<std::pair<std::string, std::string>> env;
  uid_t uid = 1000;  ///< inside
  gid_t gid = 1000;  ///< inside
  std::vector<bind_mount> mounts;
  /// Host paths of device nodes that the container has and may use ("/dev/nvidia0").
  std::vector<std::string> device_nodes;
  std::optional<user_namespace> user_ns;
  /// Mount a read-only /sys: the NVIDIA driver looks there, nothing else does.
  bool sysfs = false;
};

/// Adds the tree of one of the project's own programs, read-only and at the same path, and makes it
/// the first argument. `name` as in `own_program`.
void use_own_program(container_options& options, const std::string& name);

}  // namespace gpushm_testing
