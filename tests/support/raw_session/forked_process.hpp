// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/unique_fd.hpp"

namespace gpushm_testing {

/// The uid and gid of attackers if the test runs as root.
inline constexpr uid_t hostile_uid = 65534;

struct forked_options {
  /// Run under this uid, and the gid of the same number, without supplementary groups; -1: this
  /// process's.
  uid_t uid = static_cast<uid_t>(-1);
  /// Limit of open descriptors, soft and hard; 0: this process's.
  unsigned open_files = 0;
  /// CPUs that the child and its children may use; empty: this process's.
  std::vector<unsigned> cores = {};
  /// Added to the child's nice value.
  int niceness = 0;
};

/// A forked child that runs a function in a separate process group; on destruction the group gets
/// SIGKILL and the child is reaped. It keeps only the standard descriptors of this process. Fork it
/// from a process without other threads. Move-only.
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class forked_process {
 public:
  /// The child's end.
  class parent_link {
   public:
    explicit parent_link(int socket) noexcept : socket_(socket) {}
    /// Sends a line to the parent.
    void send_line(std::string_view line) const;
    /// Blocks until the parent calls `go`; exits the process when the parent has exited.
    void wait_for_go() const;

   private:
    int socket_;
  };

  /// The child exits with status 0 when `body` returns, and with 1, after writing the text to
  /// standard error, when it throws. Throws `harness_error` when no process can be created.
  [[nodiscard]] static forked_process start(const forked_options& options,
                                            const std::function<void(parent_link&)>& body);
  forked_process(forked_process&& other) noexcept;
  forked_process& operator=(forked_process&&) = delete;
  forked_process(const forked_process&) = delete;
  forked_process& operator=(const forked_process&) = delete;
  ~forked_process();

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Returns the next line from the child. Throws `harness_error` when it exits, or sends nothing
  /// for `timeout`.
  [[nodiscard]] std::string wait_line(std::chrono::milliseconds timeout);
  /// Lets the child's `wait_for_go` return.
  void go() const;
  /// SIGKILL for the child only; its children stay alive. Does not block.
  void kill() const;
  /// SIGKILL for the group; then reaps the child.
  void stop() noexcept;

 private:
  forked_process(pid_t pid, gpushm::base::unique_fd socket) noexcept;
  pid_t pid_;
  gpushm::base::unique_fd socket_;
};

/// The tenant that brokers assign to all processes here, whatever their uid, because this process
/// runs in a container or a user's slice (docs/threat-model.md, "Principals"). Nullopt when uids
/// distinguish processes.
[[nodiscard]] std::optional<std::string> one_tenant_here();

/// Blocks for `duration`.
void sleep_for(std::chrono::nanoseconds duration) noexcept;

}  // namespace gpushm_testing
