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

/// A container that is about to run: its bundle in a temporary directory, and the command that runs
/// it. Container, cgroup and directory go with the object, and also when this process is killed.
/// Move-only.
///
/// Distinct objects: safe. Shared objects: const members safe.
class bundle {
 public:
  /// The container's id begins with `prefix` and is not used twice on a machine. Throws `error`.
  bundle(const runtime& with, const container_options& options, std::string_view prefix);

  [[nodiscard]] const std::string& id() const noexcept { return id_; }
  /// Runs the container in the foreground, with the standard input and output of whoever executes
  /// this.
  [[nodiscard]] std::vector<std::string> run_command() const;
  /// Another command of the runtime about containers of this bundle: {"kill", id, "9"}.
  [[nodiscard]] std::vector<std::string> command(const std::vector<std::string>& rest) const;
  /// The main program's PID as the host numbers it, once it has been started.
  [[nodiscard]] std::optional<pid_t> host_pid() const;
  /// What the runtime logged.
  [[nodiscard]] std::string log_text() const;
  /// Deletes the container, running or not, and the directory, as the object's end does; blocks at
  /// most 15 seconds. A container that is still being made would escape: while `running` says that
  /// `run_command` runs, waits for its program to be there.
  void remove(const std::function<bool()>& running) noexcept;

 private:
  std::string id_;
  cleanup_guard guard_;
  std::vector<std::string> runtime_;
};

}  // namespace gpushm::app::oci
