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
struct run_environment {
  app::oci::runtime runtime;
  std::vector<gpu> gpus;         ///< used in the trials: two, one or none
  std::vector<int> all_minors;   ///< of all GPUs of the machine, for privileged containers
  bool peer_access = true;       ///< the second GPU can access the first one's memory
  std::string domain_directory;  ///< the broker's directory on the host
  std::string shm_directory;     ///< mounted at /dev/shm in the containers of one pod
  std::vector<app::oci::bind_mount> mounts;  ///< the program, the driver, and the paths of --bind
  std::vector<std::pair<std::string, std::string>> env;
  /// Whether `mounts` has libgpushm-ipc.so at `ipc_library_inside`.
  bool ipc_library = false;
  bool measure = false;  ///< bandwidths, with larger segments
};

/// The directory of the broker's socket in the containers.
inline constexpr std::string_view domain_inside = "/run/gpushm/d/matrix";
/// As the CDI device gpushm.dev/ipc mounts it.
inline constexpr std::string_view ipc_library_inside = "/run/gpushm/ipc/libgpushm-ipc.so";

/// The device nodes and GPUs of both sides in a row.
struct assignment {
  std::vector<int> exporter_minors;
  std::vector<int> importer_minors;
  std::string exporter_device;  ///< UUIDs; empty without a GPU
  std::string importer_device;
  int gpu = -1;  ///< minor of the GPU whose memory is shared
};
/// Pure. Precondition: for a row with "one each", `environment` has two GPUs or none.
[[nodiscard]] assignment assign(const row& setting, const run_environment& environment);

/// The options of a row's exporter or importer container. `pause_pid`: the host's PID of the
/// container whose namespaces the other containers of the pod join; 0: none. Pure, except that it
/// checks which device nodes exist.
[[nodiscard]] app::oci::container_options options_of(const row& setting,
                                                     const run_environment& environment,
                                                     bool exporter,
                                                     pid_t pause_pid);

/// The running containers of a row, whose programs are `gpushm trial-worker`. The destructor
/// deletes them. Not copyable or movable.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class container_pair {
 public:
  /// Starts the containers and waits until their programs run. Throws `error` (peer_died,
  /// timed_out).
  container_pair(const row& setting,
                 const run_environment& environment,
                 int cancel_fd,
                 base::deadline until);
  container_pair(const container_pair&) = delete;
  container_pair& operator=(const container_pair&) = delete;
  ~container_pair();

  [[nodiscard]] base::child_process& exporter() { return exporter_->process(); }
  [[nodiscard]] base::child_process& importer() { return importer_->process(); }
  /// The permissions of both sides; their PIDs come from the trials.
  [[nodiscard]] const sides& both() const noexcept { return both_; }
  /// The runtime's error message about a container that exited early; empty if none.
  [[nodiscard]] std::string problem() const;

 private:
  // In this order, because the others use the namespaces of the first.
  std::optional<app::oci::container> pause_;
  std::optional<app::oci::container> exporter_;
  std::optional<app::oci::container> importer_;
  sides both_;
};

/// Mounts for this program and its loaded libraries, each at the same path as on the host; omits
/// files that every container has.
[[nodiscard]] std::vector<app::oci::bind_mount> program_mounts();

/// Mounts for libgpushm-ipc.so and the libgpushm.so.1 that it opens, which is beside it or in the
/// directory of this program.
[[nodiscard]] std::vector<app::oci::bind_mount> ipc_mounts(const std::string& library);

/// Whether every container has `path`, as part of /usr or similar.
[[nodiscard]] bool is_in_every_container(const std::string& path);

}  // namespace gpushm::cli::matrix
