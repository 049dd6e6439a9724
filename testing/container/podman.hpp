// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "testing/container/options.hpp"
#include "testing/process/spawn.hpp"
#include "testing/process/temp_dir.hpp"

namespace gpushm_testing {

/// A container that podman is to run.
struct podman_options {
  std::vector<std::string> argv;
  std::vector<std::string> devices;  ///< qualified CDI names
  std::vector<bind_mount> mounts;
  std::vector<std::pair<std::string, std::string>> env;
  std::vector<std::string> more;  ///< other options of `podman run`
};

/// Why podman's containers cannot be run here, for GTEST_SKIP; nothing when they can. Tried once a
/// process; takes up to a few seconds.
[[nodiscard]] std::optional<std::string> why_no_podman();

/// The distribution's podman with runc, storage of its own and CDI directories of its own, which
/// nobody else on the machine sees: each run has a mount namespace in which /run is empty but for
/// `cdi_directory()` at /run/cdi and the domains at /run/gpushm/d. Its image is a directory with
/// the C library, the project's command and a shell, and nothing else. Goes, with everything in it,
/// with the object. Needs root.
///
/// Distinct objects: safe. Shared objects: const members safe.
class podman {
 public:
  /// `others` as for `make_image_root`. Throws `harness_error`.
  explicit podman(const std::vector<std::string>& others = {});
  podman(const podman&) = delete;
  podman& operator=(const podman&) = delete;
  ~podman();

  /// Seen by podman as /run/cdi (which /var/run/cdi is).
  [[nodiscard]] std::string cdi_directory() const { return directory_ / "cdi"; }
  /// Seen by podman as /run/gpushm/d: a directory in it is a domain's.
  [[nodiscard]] std::string domains_directory() const { return directory_ / "domains"; }
  /// The path of the project's command inside the containers.
  [[nodiscard]] static std::string command_inside() { return "/bin/gpushm"; }

  /// `podman run` with these options, to be started by the caller; a container that is killed with
  /// it goes too.
  [[nodiscard]] spawn_options run(const podman_options& options) const;

 private:
  [[nodiscard]] std::vector<std::string> command(const std::vector<std::string>& arguments) const;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> environment() const;

  temp_dir directory_{0755};
};

}  // namespace gpushm_testing
