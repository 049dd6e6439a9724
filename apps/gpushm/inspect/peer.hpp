// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace gpushm::cli {

/// The result of opening a GPU's node with the permissions of another process.
struct tried_node {
  int minor = -1;  ///< N of nvidiaN
  int error = 0;   ///< errno of opening it; 0: it can be opened
  friend bool operator==(const tried_node&, const tried_node&) = default;
};

struct peer_nodes {
  /// Minors of the GPUs whose nodes the process may open, ascending; nullopt: unknown.
  std::optional<std::vector<int>> minors;
  std::vector<tried_node> tried;  ///< all of its GPU nodes, sorted by minor
  std::string problem;            ///< why `minors` is unknown
};

/// Determines which GPU nodes another process may open, by opening them: a short-lived child of
/// this process joins the peer's device cgroup, enters its mount namespace and root directory,
/// assumes its user, groups and capabilities, opens each node for reading and writing, and exits.
/// This is the only way to detect what a device cgroup allows. A missing node cannot be opened,
/// although libcuda creates it if the peer is root and may do so. Requires root in the initial user
/// namespace, except for properties that peer and caller share. `dev_root`: the directory of the
/// nodes as the peer sees it. Blocks for at most `timeout`. Does not throw.
[[nodiscard]] peer_nodes minors_of(
    pid_t peer,
    const std::string& dev_root = "/dev",
    std::chrono::milliseconds timeout = std::chrono::seconds(5)) noexcept;

/// A program that manages containers, and the directory of their state.
struct container_runtime {
  enum class kind : std::uint8_t {
    oci,     ///< runc, crun: `PROGRAM [--root ROOT] state NAME`
    engine,  ///< podman, docker: `PROGRAM inspect NAME`
  };
  kind type = kind::oci;
  std::string program;  ///< path
  std::string root;     ///< of an OCI runtime; empty: its default
  /// "runc --root /run/runc", for messages.
  [[nodiscard]] std::string text() const;
};

/// The installed runtimes, each with its default root and the existing roots of containerd, Docker
/// and CRI-O.
[[nodiscard]] std::vector<container_runtime> known_runtimes();

/// Returns the PID, in this process's PID namespace, of the first process of a running container.
/// Queries the runtimes one after the other and blocks for at most a few seconds for each. Throws
/// `error`: invalid_argument (no runtime has the container, naming those queried; it is not
/// running; not a name).
[[nodiscard]] pid_t pid_of_container(const std::string& name,
                                     const std::vector<container_runtime>& runtimes);

}  // namespace gpushm::cli
