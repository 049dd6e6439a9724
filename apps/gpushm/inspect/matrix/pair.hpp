// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/gpushm/inspect/matrix/gpus.hpp"
#include "apps/gpushm/inspect/matrix/result.hpp"
#include "apps/support/oci/container.hpp"

namespace gpushm::cli::matrix {

/// The settings shared by the containers of all rows.
struct surroundings {
  app::oci::runtime runtime;
  std::vector<gpu> gpus;                     ///< of the trials: two, one or none
  std::vector<int> all_minors;               ///< of the machine: what a privileged container gets
  bool peer_access = true;                   ///< the second GPU can use the first one's memory
  std::string domain_directory;              ///< the broker's, on the host
  std::string shm_directory;                 ///< what the containers of one pod have as /dev/shm
  std::vector<app::oci::bind_mount> mounts;  ///< the program, the driver, and what --bind names
  std::vector<std::pair<std::string, std::string>> env;
};

/// The broker's socket as the containers see it.
inline constexpr std::string_view domain_inside = "/run/gpushm/d/matrix";

/// The permissions of both sides in a row, and the GPUs that they use.
struct assignment {
  std::vector<int> exporter_minors;
  std::vector<int> importer_minors;
  std::string exporter_device;  ///< UUIDs; empty without a GPU
  std::string importer_device;
  int gpu = -1;  ///< minor of the GPU whose memory is shared
};
/// Pure. A row with "one each" needs two GPUs or none in `around`.
[[nodiscard]] assignment assign(const row& setting, const surroundings& around);

/// The options of the containers of a row: exporter or importer. `pause_pid` is of the container
/// whose namespaces the others of its pod join, as the host numbers it; 0: none. Pure but for
/// looking for device nodes.
[[nodiscard]] app::oci::container_options options_of(const row& setting,
                                                     const surroundings& around,
                                                     bool exporter,
                                                     pid_t pause_pid);

/// The running containers of a row. Their programs are `gpushm trial-worker`. They go with the
/// object. Not copyable or movable.
///
/// Distinct objects: safe. Shared objects: unsafe.
class container_pair {
 public:
  /// Starts all and waits until their programs run. Throws `error` (peer_died, timed_out).
  container_pair(const row& setting,
                 const surroundings& around,
                 int cancel_fd,
                 base::deadline until);
  container_pair(const container_pair&) = delete;
  container_pair& operator=(const container_pair&) = delete;
  ~container_pair();

  [[nodiscard]] base::child_process& exporter() { return exporter_->process(); }
  [[nodiscard]] base::child_process& importer() { return importer_->process(); }
  /// What both may do, without the PIDs of trials.
  [[nodiscard]] const sides& both() const noexcept { return both_; }
  /// What the runtime logged about a container that ended early; empty when nothing.
  [[nodiscard]] std::string problem() const;

 private:
  // In this order: the namespaces of the first are used by the others.
  std::optional<app::oci::container> pause_;
  std::optional<app::oci::container> exporter_;
  std::optional<app::oci::container> importer_;
  sides both_;
};

/// Mounts for this program and the libraries that it has loaded, each at its own path; nothing for
/// what every container has.
[[nodiscard]] std::vector<app::oci::bind_mount> program_mounts();

/// Whether containers see `path` anyway, as part of /usr and its like.
[[nodiscard]] bool is_in_every_container(const std::string& path);

}  // namespace gpushm::cli::matrix
