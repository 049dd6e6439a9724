// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.hpp"

namespace gpushm_testing {

/// The uid and gid of attackers where the test runs as root.
inline constexpr uid_t hostile_uid = 65534;

struct forked_options {
  /// Run under this uid, and the gid of the same number, without supplementary groups; -1: this
  /// process's.
  uid_t uid = static_cast<uid_t>(-1);
  /// Limit of open descriptors, soft and hard; 0: this process's.
  unsigned open_files = 0;
  /// CPUs that it and its children may use; empty: this process's.
  std::vector<unsigned> cores = {};
  /// Added to its nice value.
  int niceness = 0;
};

/// A forked child that runs a function in a process group of its own; the group gets SIGKILL, and
/// the child is reaped, with the object. It keeps no descriptor of this process but the standard
/// ones. Fork it from a process without other threads. Move-only.
/// Distinct objects: safe. Shared objects: unsafe.
class forked_process {
 public:
  /// The child's end.
  class parent_link {
   public:
    explicit parent_link(int socket) noexcept : socket_(socket) {}
    /// Sends a line to the parent.
    void say(std::string_view line) const;
    /// Blocks until the parent calls `go`; exits when the parent is gone.
    void wait_for_go() const;

   private:
    int socket_;
  };

  /// The child ends with status 0 when `body` returns, and with 1, after writing the text to
  /// standard error, when it throws. Throws `harness_error` when no process can be made.
  [[nodiscard]] static forked_process start(const forked_options& options,
                                            const std::function<void(parent_link&)>& body);
  forked_process(forked_process&& other) noexcept;
  forked_process& operator=(forked_process&&) = delete;
  forked_process(const forked_process&) = delete;
  forked_process& operator=(const forked_process&) = delete;
  ~forked_process();

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// The next line that the child says. Throws `harness_error` when it ends, or says nothing for
  /// `timeout`.
  [[nodiscard]] std::string wait_line(std::chrono::milliseconds timeout);
  /// Lets the child's `wait_for_go` return.
  void go() const;
  /// SIGKILL for the child alone; its children live on. Does not wait.
  void kill() const;
  /// SIGKILL for the group; then reaps the child.
  void stop() noexcept;

 private:
  forked_process(pid_t pid, gpushm::base::unique_fd socket) noexcept;
  pid_t pid_;
  gpushm::base::unique_fd socket_;
};

/// The tenant that brokers take all processes here for, whatever their uid: this process runs in a
/// container or a user's slice (docs/threat-model.md, "Principals"). Nothing when uids tell them
/// apart.
[[nodiscard]] std::optional<std::string> one_tenant_here();

/// Blocks for `duration`.
void sleep_for(std::chrono::nanoseconds duration) noexcept;

}  // namespace gpushm_testing
