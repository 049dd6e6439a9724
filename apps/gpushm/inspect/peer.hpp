// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace gpushm::cli {

/// A GPU's node that was tried, as another process would.
struct tried_node {
  int minor = -1;  ///< N of nvidiaN
  int error = 0;   ///< errno of opening it; 0: it can be opened
  friend bool operator==(const tried_node&, const tried_node&) = default;
};

struct peer_nodes {
  /// GPUs whose nodes the process may open, ascending; nothing: that cannot be known.
  std::optional<std::vector<int>> minors;
  std::vector<tried_node> tried;  ///< all nodes that it has, by minor
  std::string problem;            ///< why nothing is known
};

/// Which GPU nodes another process may open, found by trying: a short-lived child of this process
/// joins the peer's cgroup of devices, enters its mount namespace and root directory, takes its
/// user, groups and capabilities, opens each node for reading and writing, and ends. No other way
/// tells what a device cgroup allows. A node that is missing cannot be opened, although libcuda
/// makes it for a peer that is root and may. Needs root, in the user namespace of the machine,
/// except for what peer and caller have in common. `dev_root` is where the peer sees the nodes.
/// Blocks until done, at most `timeout`. Never throws.
[[nodiscard]] peer_nodes minors_of(
    pid_t peer,
    const std::string& dev_root = "/dev",
    std::chrono::milliseconds timeout = std::chrono::seconds(5)) noexcept;

/// A program that knows containers, and where it keeps their state.
struct container_runtime {
  enum class kind : std::uint8_t {
    oci,     ///< runc, crun: `PROGRAM [--root ROOT] state NAME`
    engine,  ///< podman, docker: `PROGRAM inspect NAME`
  };
  kind speaks = kind::oci;
  std::string program;  ///< path
  std::string root;     ///< of an OCI runtime; empty: its own default
  /// "runc --root /run/runc", for people.
  [[nodiscard]] std::string text() const;
};

/// The runtimes that are installed here, each with the roots that exist: its default, and those
/// that containerd, Docker and CRI-O use.
[[nodiscard]] std::vector<container_runtime> known_runtimes();

/// The PID, as this process sees it, of the first process of a running container, asked of one
/// runtime after the other. Blocks a few seconds for each at most. Throws `error`: invalid_argument
/// (no runtime knows it, naming those that were asked; it is not running; no name).
[[nodiscard]] pid_t pid_of_container(const std::string& name,
                                     const std::vector<container_runtime>& runtimes);

}  // namespace gpushm::cli
