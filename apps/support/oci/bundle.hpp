// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/support/oci/cleanup_guard.hpp"
#include "apps/support/oci/options.hpp"
#include "apps/support/oci/runtime.hpp"

namespace gpushm::app::oci {

/// The bundle of a container in a temporary directory, and the command that runs the container.
/// Container, cgroup and directory are removed with the object, also if this process is killed.
/// Move-only.
///
/// Thread-safety: distinct objects: safe; shared objects: const members safe.
class bundle {
 public:
  /// The container's id begins with `prefix` and is unique on the machine. Throws `error`.
  bundle(const runtime& runtime, const container_options& options, std::string_view prefix);

  [[nodiscard]] const std::string& id() const noexcept { return id_; }
  /// The command that runs the container in the foreground, with the standard input and output of
  /// the executing process.
  [[nodiscard]] std::vector<std::string> run_command() const;
  /// Another command of the runtime for containers of this bundle: {"kill", id, "9"}.
  [[nodiscard]] std::vector<std::string> command(const std::vector<std::string>& arguments) const;
  /// The main program's PID on the host; nullopt if it was not started yet.
  [[nodiscard]] std::optional<pid_t> host_pid() const;
  /// The runtime's log.
  [[nodiscard]] std::string log_text() const;
  /// Deletes the container, running or not, and the directory, like the destructor. Blocks for at
  /// most 20 seconds. A container that is still being created would be missed, so this first waits
  /// for its program to start while `running` (whether `run_command` is running) returns true.
  void remove(const std::function<bool()>& running) noexcept;

 private:
  std::string id_;
  cleanup_guard guard_;
  std::vector<std::string> runtime_;
};

}  // namespace gpushm::app::oci
