// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/container/options.hpp"
#include "tests/support/process/spawn.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_testing {

/// Arguments of `podman run`.
struct podman_options {
  std::vector<std::string> argv;
  std::vector<std::string> devices;  ///< qualified CDI names
  std::vector<bind_mount> mounts;
  std::vector<std::pair<std::string, std::string>> env;
  std::vector<std::string> more;  ///< other options of `podman run`
  std::string image;              ///< one of `build_image`; empty: the image of this object
  std::string runtime;            ///< a path; empty: runc
};

/// The reason why podman's containers cannot run here, for GTEST_SKIP; nullopt when they can. Tried
/// once per process; takes up to a few seconds.
[[nodiscard]] std::optional<std::string> why_no_podman();

/// The distribution's podman with runc and separate storage and CDI directories, which no other
/// process on the machine sees: each run has a mount namespace in which /run is empty except for
/// `cdi_directory()` at /run/cdi and the domains at /run/gpushm/d. Its image is a directory with
/// the C library, the project's command and a shell, and nothing else. Everything is removed on
/// destruction. Needs root.
/// Thread-safety: distinct objects: safe; shared objects: const members safe.
class podman {
 public:
  /// `others` as for `make_image_root`. Throws `harness_error`.
  explicit podman(const std::vector<std::string>& others = {});
  podman(const podman&) = delete;
  podman& operator=(const podman&) = delete;
  ~podman();

  /// Mounted as /run/cdi for podman (/var/run/cdi is the same directory).
  [[nodiscard]] std::string cdi_directory() const { return directory_ / "cdi"; }
  /// Mounted as /run/gpushm/d for podman: each directory in it belongs to a domain.
  [[nodiscard]] std::string domains_directory() const { return directory_ / "domains"; }
  /// The path of the project's command inside the containers.
  [[nodiscard]] static std::string command_inside() { return "/bin/gpushm"; }

  /// Builds image `name` by the instructions `changes` (a Containerfile without FROM and RUN) upon
  /// this object's image, with annotations in its manifest. Throws `harness_error`.
  void build_image(const std::string& name,
                   const std::string& changes,
                   const std::vector<std::string>& annotations) const;

  /// `podman run` with these options, for the caller to start; killing it also removes its
  /// container.
  [[nodiscard]] spawn_options run(const podman_options& options) const;

 private:
  [[nodiscard]] std::vector<std::string> command(const std::vector<std::string>& arguments) const;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> environment() const;

  temp_dir directory_{0755};
};

}  // namespace gpushm_testing
